"""What the parts of a step cost on a device, made from the very works that the runtime submits.

Each pass of a linear layer is a GEMM; its two operands and its result have the costs of
`operations.Gemm`. Attention is that of `operations.attention_forward` and its gradient. The output
head with its loss goes out by blocks of the vocabulary: log-sum-exp and the target's logit come
back, never the logits.
"""

from __future__ import annotations

from dataclasses import replace

from cleave.core.matrix import DType, Matrix
from cleave.core.operations import (
    AttentionShape,
    AttentionTensors,
    Gemm,
    attention_backward,
    attention_forward,
)
from cleave.core.planning.cost import CostForm, Terms
from cleave.core.step.batch import Batch
from cleave.core.step.model import ModelShape

_F32_BYTES = DType.F32.itemsize


def gemm_forms(m: int, n: int, k: int, dtype: DType) -> tuple[CostForm, CostForm, CostForm]:
    """A product ``(m, k) @ (k, n)`` over m x n, over k x n and over m x k.

    The first keeps the inner axis whole; the others cut it, and partial sums come back.
    """
    gemm = Gemm(
        name="gemm", a=Matrix(1, m, k, dtype), b=Matrix(2, k, n, dtype), out=Matrix(3, m, n, dtype)
    )
    over_mn, over_kn, over_mk = (CostForm.of(work) for work in gemm.forms())
    return over_mn, over_kn, over_mk


def forward_held(form: CostForm, scale: float) -> CostForm:
    """A GEMM over m x n whose columns of weights lie on the devices for good.

    Args:
        form: Of the GEMM, nothing held.
        scale: Bytes of all weights that lie there, per byte of this GEMM's.
    """
    r0, r1, r2, r3 = form.memory
    d0, d1, _, d3 = form.down
    return replace(form, down=(d0, d1, 0.0, d3), memory=(r0, r1, r2 * scale, r3))


def backward_on_tiles(form: CostForm, *, trains: bool) -> CostForm:
    """Both gradients of a GEMM on the tiles of its forward pass, operands held since then.

    Only the output's gradient goes down; the input's comes back as partial sums over the columns,
    and the weights' over the rows.

    Args:
        form: Of the forward pass over m x n.
        trains: Whether the weights' gradient is wanted.
    """
    _, d1, d2, _ = form.down
    *_, u3 = form.up
    weights = d2 if trains else 0.0
    r0, r1, r2, r3 = form.memory
    return CostForm(
        down=(0.0, 0.0, 0.0, u3),
        up=(0.0, d1, weights, 0.0),
        flops=form.flops * (2 if trains else 1),
        memory=(r0, r1 + d1, r2 + weights, r3),
    )


def holding(form: CostForm, row_scale: float, col_scale: float) -> CostForm:
    """A GEMM over m x n whose operands stay on the devices beside those of others.

    Args:
        form: Of the GEMM.
        row_scale: Bytes of all rows that lie there, per byte of this GEMM's.
        col_scale: Likewise of columns.
    """
    r0, r1, r2, r3 = form.memory
    return replace(form, memory=(r0, r1 * row_scale, r2 * col_scale, r3))


def attention_forms(model: ModelShape, batch: Batch) -> tuple[CostForm, CostForm]:
    """Forward and backward of one layer's attention over sequences x KV heads."""
    group = model.n_heads // model.n_kv_heads
    shape = AttentionShape(
        batch=batch.n_sequences,
        kv_heads=model.n_kv_heads,
        group=group,
        q_len=batch.length,
        kv_len=batch.length,
        head_dim=model.head_dim,
        value_dim=model.head_dim,
        causal=model.is_causal,
        scale=1.0,
    )
    rows, kv = batch.n_sequences, model.n_kv_heads * batch.length * model.head_dim
    q, k, v, out = (
        Matrix(i, rows, kv * (group if i in (1, 4) else 1), batch.wire) for i in range(1, 5)
    )
    lse = Matrix(5, rows, model.n_heads * batch.length, DType.F32)
    tensors = AttentionTensors(q=q, k=k, v=v, out=out, lse=lse, mask=None)
    backward = attention_backward(
        shape, tensors, Matrix(6, out.n_rows, out.n_cols, out.dtype), (q, k, v)
    )
    return CostForm.of(attention_forward(shape, tensors)), CostForm.of(backward)


def head_forms(model: ModelShape, batch: Batch) -> tuple[CostForm, CostForm]:
    """The output head with its loss over tokens x vocabulary: both passes, on the same tiles.

    Forward, a device gets hidden states and weights and returns for each token its block's
    log-sum-exp and the target's logit, in fp32. Backward, it gets the loss' log-sum-exp per token,
    computes its logits again, and returns partial sums of the hidden states' gradient and of the
    weights'.
    """
    bytes_per_side = float(batch.wire.itemsize * model.hidden)
    per_token = 2.0 * _F32_BYTES
    logits = float(batch.wire.itemsize)
    trained = 0.0 if batch.is_frozen else bytes_per_side
    weights_down = 0.0 if batch.is_frozen else bytes_per_side
    held: Terms = (0.0, bytes_per_side + per_token, bytes_per_side, logits)
    forward = CostForm(
        down=(0.0, bytes_per_side + _F32_BYTES, weights_down, 0.0),
        up=(0.0, per_token, 0.0, 0.0),
        flops=2.0 * model.hidden,
        memory=held,
    )
    backward = CostForm(
        down=(0.0, _F32_BYTES, 0.0, 0.0),
        up=(0.0, bytes_per_side, trained, 0.0),
        flops=(4.0 if batch.is_frozen else 6.0) * model.hidden,
        memory=(0.0, held[1] + bytes_per_side, held[2] + trained, held[3]),
    )
    return forward, backward


def head_forms_alone(model: ModelShape, batch: Batch) -> tuple[CostForm, CostForm]:
    """As `head_forms`, where nothing stays on a device: backward gets again what forward got."""
    forward, backward = head_forms(model, batch)
    _, per_row, _, _ = forward.down
    per_col = float(batch.wire.itemsize * model.hidden)
    _, log_sum_exp, _, _ = backward.down
    return (
        replace(forward, down=(0.0, per_row, per_col, 0.0)),
        replace(backward, down=(0.0, per_row + log_sum_exp, per_col, 0.0)),
    )


def together(forward: CostForm, backward: CostForm) -> CostForm:
    """Two passes on one tile; what they hold at once is the larger."""

    def both(one: Terms, other: Terms) -> Terms:
        c0, c1, c2, c3 = (a + b for a, b in zip(one, other, strict=True))
        return (c0, c1, c2, c3)

    def larger(one: Terms, other: Terms) -> Terms:
        c0, c1, c2, c3 = (max(a, b) for a, b in zip(one, other, strict=True))
        return (c0, c1, c2, c3)

    return CostForm(
        down=both(forward.down, backward.down),
        up=both(forward.up, backward.up),
        flops=forward.flops + backward.flops,
        memory=larger(forward.memory, backward.memory),
    )
