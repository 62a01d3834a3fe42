"""Matrices that a fleet may read and work under way, tied to the life of Python objects."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import torch

from cleave.compute.torch_types import DTYPES
from cleave.core.layout import Layout
from cleave.core.matrix import DType, Matrix
from cleave.core.work import Work
from cleave.errors import CleaveError
from cleave.train.runtime import Pending, Runtime


def as_matrix(tensor: torch.Tensor, n_cols: int, dtype: DType) -> torch.Tensor:
    """A contiguous ``(rows, n_cols)`` tensor on the CPU, with the same storage if it can be."""
    plain = tensor.detach().to(device="cpu", dtype=DTYPES[dtype])
    return plain.reshape(-1, n_cols).contiguous()


class Held:
    """A matrix that the fleet may read; given back when nothing refers to this object any more.

    Attributes:
        matrix: Its name.
        tensor: Its elements on the host.
    """

    __slots__ = ("__weakref__", "matrix", "tensor")

    def __init__(self, runtime: Runtime, matrix: Matrix, tensor: torch.Tensor) -> None:
        self.matrix = matrix
        self.tensor = tensor
        weakref.finalize(self, runtime.release, matrix).atexit = False

    @staticmethod
    def adopt(runtime: Runtime, tensor: torch.Tensor) -> Held:
        """A contiguous 2-D CPU tensor that will not change while it is held."""
        return Held(runtime, runtime.adopt(tensor), tensor)

    @staticmethod
    def allocate(runtime: Runtime, n_rows: int, n_cols: int, dtype: DType) -> Held:
        """Room for a result."""
        # Tensors made in inference mode may only be written in it: not by the fleet's threads.
        with torch.inference_mode(False):
            matrix = runtime.allocate(n_rows, n_cols, dtype)
            return Held(runtime, matrix, runtime.tensor(matrix))


class Flight:
    """Work under way with all that it reads and writes.

    One that is dropped before it was waited for goes to ``orphans``: what it reads may only be
    given back when it has ended.
    """

    __slots__ = ("__weakref__", "_finalizer", "_inputs", "_outputs", "_pending")

    def __init__(
        self, pending: Pending, inputs: Sequence[Held], outputs: Sequence[Held], orphans: Orphans
    ) -> None:
        self._pending = pending
        self._inputs = list(inputs)
        self._outputs = tuple(outputs)
        keep = (pending, self._inputs, self._outputs)
        self._finalizer = weakref.finalize(self, orphans.append, keep)
        self._finalizer.atexit = False

    def forget_inputs(self) -> bool:
        """Give back what the work has read if it is done; whether it is."""
        if self._pending.done:
            self._inputs.clear()
        return not self._inputs

    def wait(self) -> tuple[torch.Tensor, ...]:
        """The results, when they are whole.

        Raises:
            WorkFailedError: If neither devices nor the host could do it.
        """
        try:
            self._pending.wait()
        except CleaveError:
            self._finalizer.detach()
            raise
        self._finalizer.detach()
        return tuple(output.tensor for output in self._outputs)

    @property
    def outputs(self) -> tuple[Held, ...]:
        """The matrices of the results."""
        return self._outputs

    @property
    def form(self) -> int:
        """After `wait`: which form was taken."""
        return self._pending.form

    @property
    def layout(self) -> Layout:
        """After `wait`: which device did which tile."""
        return self._pending.layout


class Unread:
    """Work that nobody waits for yet: what it has read is given back as soon as it is done."""

    __slots__ = ("_flights",)

    def __init__(self) -> None:
        self._flights: deque[weakref.ref[Flight]] = deque()

    def append(self, flight: Flight) -> None:
        """Watch one more, and look at the oldest."""
        self._flights.append(weakref.ref(flight))
        while self._flights:
            oldest = self._flights[0]()
            if oldest is not None and not oldest.forget_inputs():
                return
            self._flights.popleft()


class Recomputed:
    """What checkpointing has just made again, for the backward step that follows and reads it."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[tuple[object, ...], Held] = {}

    def keep(self, held: Held) -> None:
        """Hold on to it until it is taken or all is cleared."""
        self._held[self._key(held.tensor)] = held

    def take(self, tensor: torch.Tensor) -> Held | None:
        """What was kept of this tensor, or of an alias with the same content."""
        return self._held.pop(self._key(tensor), None)

    def clear(self) -> None:
        """Forget what nobody took."""
        self._held.clear()

    @staticmethod
    def _key(tensor: torch.Tensor) -> tuple[object, ...]:
        return (tensor.data_ptr(), tensor._version, tensor.shape, tensor.dtype)


class Orphans:
    """Work that an exception left behind, kept until it has ended. Any thread may call."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        # Filled by finalizers, which may run in the middle of anything: a deque needs no lock.
        self._kept: deque[tuple[Pending, list[Held], tuple[Held, ...]]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def append(self, kept: tuple[Pending, list[Held], tuple[Held, ...]]) -> None:
        """Keep work and its matrices."""
        self._kept.append(kept)

    def wait(self) -> None:
        """Wait for all of it and give its matrices back; how it ended matters to nobody."""
        while self._kept:
            # All of it is held by name: what the work reads may go only when it has ended.
            kept = self._kept.popleft()
            with suppress(CleaveError):
                kept[0].wait()
            del kept


def start(
    runtime: Runtime,
    forms: Sequence[Work],
    hints: Sequence[Layout],
    matrices: tuple[Sequence[Held], Sequence[Held]],
    orphans: Orphans,
) -> Flight:
    """Work under way.

    Args:
        runtime: Does it.
        forms: The work, over several rectangles.
        hints: Per form, where related blocks lie, or ``()``.
        matrices: What it reads and what it writes.
        orphans: Takes it if nobody waits for it.
    """
    pending = runtime.submit(forms, hints=hints)
    return Flight(pending, *matrices, orphans)
