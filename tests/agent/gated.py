"""A backend whose arithmetic waits for the test."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from cleave.compute.backend import Array
from cleave.compute.numpy_backend import NumpyBackend
from cleave.core.program import Program

BOUND_S = 20.0


class GatedBackend(NumpyBackend):
    """Numpy, but each run announces itself and waits for a permit.

    Attributes:
        started: Released once for each run that has begun.
        permits: A run takes one before it computes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.started = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)

    def run(self, program: Program, inputs: Sequence[Array]) -> list[Array]:
        self.started.release()
        assert self.permits.acquire(timeout=BOUND_S)
        return super().run(program, inputs)
