"""Tensors as blocks and back, and sums of partial results."""
