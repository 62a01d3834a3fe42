"""The protocol between server and agent, without I/O."""
