"""The three GEMMs of a linear layer, and how the blocks of one serve the others."""

from __future__ import annotations

from dataclasses import dataclass

from cleave.core.layout import Layout, Placement
from cleave.core.matrix import Matrix, Region
from cleave.core.operations import Gemm

Axes = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Taken:
    """The layout of finished work, and the axes of the layer that its rectangle spans."""

    axes: tuple[str, str]
    layout: Layout


@dataclass(frozen=True, slots=True)
class LinearPlan:
    """The GEMMs of ``Y (rows, outs) = X (rows, ins) @ W``.

    Attributes:
        out_in: Whether W is stored as ``(outs, ins)``, as by `torch.nn.Linear`; else the other way.
    """

    out_in: bool

    @property
    def forward_axes(self) -> Axes:
        """What m, n and k of the forward GEMM are."""
        return ("rows", "outs", "ins")

    @property
    def input_grad_axes(self) -> Axes:
        """What m, n and k of the input gradient's GEMM are."""
        return ("rows", "ins", "outs")

    @property
    def weight_grad_axes(self) -> Axes:
        """What m, n and k of the weight gradient's GEMM are."""
        return ("outs", "ins", "rows") if self.out_in else ("ins", "outs", "rows")

    def forward(self, x: Matrix, weight: Matrix, y: Matrix) -> Gemm:
        """``Y = X @ W``."""
        return Gemm(name="forward", a=x, b=weight, out=y, b_transposed=self.out_in)

    def input_grad(self, y_grad: Matrix, weight: Matrix, x_grad: Matrix) -> Gemm:
        """``dX = dY @ Wᵀ``; the layer below waits for it."""
        return Gemm(name="input grad", a=y_grad, b=weight, out=x_grad, b_transposed=not self.out_in)

    def weight_grad(self, x: Matrix, y_grad: Matrix, weight_grad: Matrix) -> Gemm:
        """``dW = Xᵀ @ dY``, stored as W is; nobody waits for it before the pass ends."""
        left, right = (y_grad, x) if self.out_in else (x, y_grad)
        return Gemm(
            name="weight grad", a=left, b=right, out=weight_grad, a_transposed=True, priority=1
        )


def taken(axes: Axes, form: int, layout: Layout) -> Taken | None:
    """What was done, given which of the three forms of a GEMM with these axes it was.

    None of a form in slabs: no form of another GEMM has its tiles.
    """
    rectangles = _rectangles(axes)
    return Taken(rectangles[form], layout) if form < len(rectangles) else None


def hints(axes: Axes, related: Taken | None) -> tuple[Layout, ...]:
    """Per form of a GEMM with these axes, the related layout if it spans the same rectangle.

    A device that did the tile ``(rows i, outs j)`` forward holds ``X[i, :]`` and ``W[j, :]``. Given
    ``dY[i, j]`` it has all it needs for its part of dX and of dW, which are the forms over the
    same two axes; a rectangle that lies the other way round gets transposed tiles.
    """
    if related is None:
        return ()
    found: list[Layout] = []
    for pair in _rectangles(axes):
        if pair == related.axes:
            found.append(related.layout)
        elif pair == related.axes[::-1]:
            found.append(tuple(_transposed(placement) for placement in related.layout))
        else:
            found.append(())
    return tuple(found)


def _rectangles(axes: Axes) -> tuple[tuple[str, str], ...]:
    m, n, k = axes
    return ((m, n), (k, n), (m, k))


def _transposed(placement: Placement) -> Placement:
    tile = placement.tile
    return Placement(Region(tile.col0, tile.col1, tile.row0, tile.row1), placement.device_id)
