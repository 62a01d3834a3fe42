"""Arithmetic on this machine: the backends that run a task's program."""
