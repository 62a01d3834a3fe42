"""The parameter server: connections, operands, and the driver of the scheduler."""
