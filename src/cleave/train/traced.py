"""What tracing makes of a layer, and how two traces with other batch sizes become one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from cleave.core.matrix import DType
from cleave.core.program import Argument, Extent, Op, Program
from cleave.train.aten import UntraceableError

BATCHES = (2, 3)
"""Numbers of sequences that a layer is traced with."""

Size = int | Extent


@dataclass(frozen=True, slots=True)
class Block:
    """A tensor that goes into a program or comes out of one.

    Attributes:
        shape: A size that grows with the sequences is an `Extent`. As a block it is 2-D: its rows
            are sequences, if it has any, else its first axis.
        dtype: Its element type.
    """

    shape: tuple[Size, ...]
    dtype: DType

    @property
    def is_batched(self) -> bool:
        """Whether it has rows for each sequence."""
        return any(isinstance(size, Extent) for size in self.shape)

    @property
    def block_shape(self) -> tuple[Size, int]:
        """Its shape as a block."""
        if self.is_batched:
            n_cols = math.prod(s.scale if isinstance(s, Extent) else s for s in self.shape)
            return Extent("n_rows"), n_cols
        sizes = cast("tuple[int, ...]", self.shape)
        if len(sizes) < 2:
            return 1, math.prod(sizes)
        return sizes[0], math.prod(sizes[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedLayer:
    """The two passes of a layer.

    Attributes:
        forward: Inputs are those of ``inputs``; outputs the result, then ``saved``.
        backward: Inputs are the gradient of the result, those of ``inputs`` that ``reads`` names,
            then ``saved``; outputs the gradients of the inputs that ``grads`` names.
        inputs: The tensors of the call, then the weights and buffers, then constants.
        result: What forward returns.
        saved: What forward leaves for backward.
        reads: Which inputs backward reads.
        grads: Of which inputs backward gives gradients.
        constants: The tensors that tracing found in the module's code; the last of the inputs.
    """

    forward: Program
    backward: Program
    inputs: tuple[Block, ...]
    result: Block
    saved: tuple[Block, ...]
    reads: tuple[int, ...]
    grads: tuple[int, ...]
    constants: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOfBatch:
    """The passes with one number of sequences, as in `TracedLayer`; all sizes are plain."""

    batch: int
    forward: Program
    backward: Program
    inputs: tuple[tuple[tuple[int, ...], DType], ...]
    result: tuple[tuple[int, ...], DType]
    saved: tuple[tuple[tuple[int, ...], DType], ...]
    reads: tuple[int, ...]
    grads: tuple[int, ...]
    constants: tuple[torch.Tensor, ...]


def merged(small: TraceOfBatch, large: TraceOfBatch) -> TracedLayer:
    """Two traces of a layer with the numbers of sequences of `BATCHES` as one for any number.

    Raises:
        UntraceableError: If they differ otherwise than by that.
    """
    same = ("reads", "grads")
    is_alike = all(getattr(small, name) == getattr(large, name) for name in same)
    if not is_alike or len(small.saved) != len(large.saved):
        raise UntraceableError("it does other things for other numbers of sequences")
    inputs = tuple(map(_merged_block, small.inputs, large.inputs))
    result = _merged_block(small.result, large.result)
    if not result.is_batched:
        raise UntraceableError("its result has no axis of sequences")
    grads_of = [inputs[i] for i in small.grads]
    return TracedLayer(
        forward=_merged_program(small.forward, large.forward, [None] * len(small.forward.outputs)),
        backward=_merged_program(small.backward, large.backward, grads_of),
        inputs=inputs,
        result=result,
        saved=tuple(map(_merged_block, small.saved, large.saved)),
        reads=small.reads,
        grads=small.grads,
        constants=small.constants,
    )


def _merged_block(
    small: tuple[tuple[int, ...], DType], large: tuple[tuple[int, ...], DType]
) -> Block:
    return Block(tuple(map(_merged_size, small[0], large[0])), small[1])


def _merged_size(small: int, large: int) -> Size:
    few, many = BATCHES
    if small == large:
        return small
    if small * many == large * few and small % few == 0:
        return Extent("n_rows", small // few)
    raise UntraceableError("its sequences are not independent of each other")


def _merged_program(small: Program, large: Program, grads_of: Sequence[Block | None]) -> Program:
    """One program for any number of sequences; outputs are rows of sequences, or of weights."""
    if len(small.ops) != len(large.ops) or small.outputs != large.outputs:
        raise UntraceableError("it does other things for other numbers of sequences")
    rows = {
        number: Extent("n_rows") if block is None or block.is_batched else block.block_shape[0]
        for number, block in zip(small.outputs, grads_of, strict=True)
    }
    ops: list[Op] = []
    number = small.n_inputs
    for one, other in zip(small.ops, large.ops, strict=True):
        if (one.name, one.n_results, len(one.args)) != (
            other.name,
            other.n_results,
            len(other.args),
        ):
            raise UntraceableError("it does other things for other numbers of sequences")
        args = tuple(map(_merged_argument, one.args, other.args))
        if number in rows:
            args = (args[0], (rows[number], -1))
        ops.append(Op(one.name, args, one.n_results))
        number += one.n_results
    return Program(n_inputs=small.n_inputs, ops=tuple(ops), outputs=small.outputs)


def _merged_argument(small: Argument, large: Argument) -> Argument:
    if small == large:
        return small
    if isinstance(small, tuple) and isinstance(large, tuple) and len(small) == len(large):
        return tuple(
            _merged_size(cast(int, a), cast(int, b)) for a, b in zip(small, large, strict=True)
        )
    if isinstance(small, int) and isinstance(large, int):
        return _merged_size(small, large)
    raise UntraceableError("its sequences are not independent of each other")
