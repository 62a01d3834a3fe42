"""What the PyTorch side needs of a fleet: one small seam, filled by `cleave.Fleet` and by tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from cleave.core.layout import Layout
from cleave.core.matrix import DType, Matrix
from cleave.core.work import Work


class Pending(Protocol):
    """Work under way."""

    def wait(self) -> None:
        """Return when all results are whole.

        Raises:
            WorkFailedError: If neither devices nor the host could do it.
        """
        ...

    @property
    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once. Never blocks."""
        ...

    @property
    def form(self) -> int:
        """After `wait`: which of the submitted forms was taken."""
        ...

    @property
    def layout(self) -> Layout:
        """After `wait`: which device did which tile of that form."""
        ...


class Runtime(Protocol):
    """Holds matrices on the host and has work on them done. Any thread may call any method."""

    def adopt(self, tensor: torch.Tensor) -> Matrix:
        """Register a contiguous 2-D tensor that will not change until it is released.

        Args:
            tensor: On the CPU. Only referenced, not copied.
        """
        ...

    def allocate(self, n_rows: int, n_cols: int, dtype: DType) -> Matrix:
        """A matrix for work to write; `tensor` gives its storage."""
        ...

    def tensor(self, matrix: Matrix) -> torch.Tensor:
        """The host's tensor of a matrix."""
        ...

    def release(self, matrix: Matrix) -> None:
        """Nobody will read this matrix again.

        Never blocks: the garbage collector may call it, in the middle of anything. Storage that
        `tensor` gave stays as it is: a released result lives on as a gradient or an output.
        """
        ...

    def submit(
        self,
        forms: Sequence[Work],
        *,
        hints: Sequence[Layout] = (),
    ) -> Pending:
        """Start work. Forms give the same result over other rectangles; the fastest is taken.

        Args:
            forms: At least one.
            hints: Per form, the layout of related work over the same rectangle, or ``()``.
        """
        ...

    def worthwhile(self, forms: Sequence[Work]) -> bool:
        """Whether devices would be sooner than the host (always true for ``place="devices"``)."""
        ...
