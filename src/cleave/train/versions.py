"""Versions of weights: when a copy that devices hold is still the weight, and when it is not."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.weak import WeakIdKeyDictionary

from cleave.core.matrix import DType
from cleave.train.held import Held, as_matrix
from cleave.train.linear_plan import Taken
from cleave.train.runtime import Runtime

N_CHUNKS = 64


@dataclass(slots=True)
class _Record:
    """What is known of one version of a weight."""

    mark: tuple[object, ...]
    sums: torch.Tensor
    checked_turn: int = 0
    held: dict[DType, Held] = field(default_factory=dict)
    taken: dict[tuple[DType, int], Taken] = field(default_factory=dict)


class Weights:
    """The weights that a fleet knows, each in its present version.

    A version ends with an optimizer's step (fused optimizers change neither ``_version`` nor
    ``data_ptr``), with a change of either of these, when `invalidate` is called, and when the
    content differs: sums of it are compared once in each turn, at the price of reading it.

    A weight that travels in its own type is referenced, not copied. That is safe although an
    optimizer changes it in place: every forward and backward pass waits for all work that reads it,
    and the step that changes it ends the version, so that nothing sent before is used after. Work
    that an exception left behind may read a mixture, but nobody reads its results.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._records: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._lock = threading.Lock()
        self._turn = 1
        _known.add(self)
        _watch_optimizers()

    def next_turn(self) -> None:
        """From now on each weight is compared once more before it is used again."""
        self._turn += 1

    def held(self, weight: torch.Tensor, dtype: DType) -> Held:
        """The present version of a 2-D weight in ``dtype``, cast once."""
        with self._lock:
            record = self._current(weight)
            held = record.held.get(dtype)
            if held is None:
                tensor = as_matrix(weight, weight.shape[1], dtype)
                held = record.held[dtype] = Held.adopt(self._runtime, tensor)
            return held

    def taken(self, weight: torch.Tensor, dtype: DType, n_rows: int) -> Taken | None:
        """How this version was last laid out over a batch of ``n_rows``, None if it was not."""
        with self._lock:
            record: _Record | None = self._records.get(weight)
            return None if record is None else record.taken.get((dtype, n_rows))

    def remember(self, weight: torch.Tensor, dtype: DType, n_rows: int, taken: Taken) -> None:
        """Note how this version was laid out."""
        with self._lock:
            record: _Record | None = self._records.get(weight)
            if record is not None:
                record.taken[dtype, n_rows] = taken

    def invalidate(self, weights: Iterable[torch.Tensor]) -> None:
        """End the present version of each of ``weights``; those that are unknown don't matter."""
        with self._lock:
            for weight in weights:
                self._records.pop(weight, None)

    def _current(self, weight: torch.Tensor) -> _Record:
        mark = _mark(weight)
        record: _Record | None = self._records.get(weight)
        if record is not None and record.mark == mark and self._is_unchanged(weight, record):
            return record
        record = _Record(mark=mark, sums=_sums(weight), checked_turn=self._turn)
        self._records[weight] = record
        return record

    def _is_unchanged(self, weight: torch.Tensor, record: _Record) -> bool:
        if record.checked_turn == self._turn:
            return True
        record.checked_turn = self._turn
        return torch.equal(_sums(weight), record.sums)


_known: weakref.WeakSet[Weights] = weakref.WeakSet()
_watching = False


def invalidate(weights: Iterable[torch.Tensor]) -> None:
    """End the present version of ``weights`` in every fleet."""
    ended = list(weights)
    for known in list(_known):
        known.invalidate(ended)


def _watch_optimizers() -> None:
    global _watching
    if not _watching:
        _watching = True
        register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
    invalidate(weight for group in optimizer.param_groups for weight in group["params"])


def _mark(weight: torch.Tensor) -> tuple[object, ...]:
    version = 0 if weight.is_inference() else weight._version
    return (weight.data_ptr(), version, weight.dtype, weight.shape, weight.stride())


def _bits(weight: torch.Tensor) -> torch.Tensor:
    """The content as one row of whole numbers, as wide as its size and alignment allow."""
    flat = weight.detach().contiguous().view(-1)
    start_bytes = flat.storage_offset() * flat.element_size()
    for dtype in (torch.int64, torch.int32, torch.int16):
        if flat.nbytes % dtype.itemsize == 0 and start_bytes % dtype.itemsize == 0:
            return flat.view(dtype)
    return flat.view(torch.uint8)


def _sums(weight: torch.Tensor) -> torch.Tensor:
    """The sum of each of 64 chunks (fewer if it is tiny); a change of one element changes one."""
    bits = _bits(weight)
    n_chunks = max(1, min(N_CHUNKS, bits.numel()))
    size = bits.numel() // n_chunks
    sums = bits[: size * n_chunks].view(n_chunks, size).sum(1, dtype=torch.int64)
    sums[-1] += bits[size * n_chunks :].sum(dtype=torch.int64)
    return sums.cpu()
