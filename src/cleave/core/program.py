"""Programs: straight-line lists of listed ops. Data, never code.

Values are numbered: the inputs first, then the results of the ops in order (an op with several
results takes several numbers). Names and meaning of ops are those of the core ATen ops;
`attention`, `attention_backward` and `dropout` are our own (`docs/protocol.md` lists all).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Union

import msgspec

from cleave.core.matrix import Region


class Ref(msgspec.Struct, frozen=True, tag="v"):
    """The value with this number, as an argument of an op."""

    value: int


class Extent(msgspec.Struct, frozen=True, tag="e"):
    """A whole number that depends on the tile: filled in by `Program.bind` before a task is sent.

    Attributes:
        of: ``"n_rows"``, ``"n_cols"`` (the tile's size), ``"row0"`` or ``"col0"`` (its start).
        scale: Factor on it.
    """

    of: str
    scale: int = 1


Scalar = Union[Ref, Extent, int, float, bool, str, None]
Argument = Union[Scalar, tuple[Scalar, ...]]


@dataclass(frozen=True, slots=True)
class Op:
    """One call: the op's name, its positional arguments, and how many values it makes."""

    name: str
    args: tuple[Argument, ...]
    n_results: int = 1


@dataclass(frozen=True, slots=True)
class Program:
    """Ops in order, and the numbers of the values that are its outputs."""

    n_inputs: int
    ops: tuple[Op, ...]
    outputs: tuple[int, ...]

    def bind(self, tile: Region) -> Program:
        """The same program with every `Extent` replaced by its number for ``tile``."""
        if not any(_has_extent(argument) for op in self.ops for argument in op.args):
            return self
        ops = tuple(
            replace(op, args=tuple(_bound(argument, tile) for argument in op.args))
            for op in self.ops
        )
        return replace(self, ops=ops)


def _has_extent(argument: Argument) -> bool:
    if isinstance(argument, tuple):
        return any(isinstance(item, Extent) for item in argument)
    return isinstance(argument, Extent)


def _bound(argument: Argument, tile: Region) -> Argument:
    if isinstance(argument, tuple):
        return tuple(_bound_scalar(item, tile) for item in argument)
    return _bound_scalar(argument, tile)


def _bound_scalar(scalar: Scalar, tile: Region) -> Scalar:
    if isinstance(scalar, Extent):
        extent: int = getattr(tile, scalar.of)
        return extent * scalar.scale
    return scalar
