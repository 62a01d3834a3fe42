"""Arithmetic on this machine: the backends that run a task's program."""

from cleave.compute.backend import Array, Backend
from cleave.compute.choose import load_backend

__all__ = ["Array", "Backend", "load_backend"]
