"""Known results of attention and its gradient: written out in fp64, scores and all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cleave.compute.cases import ROUNDING, Block, Case, Exact, Expected, make_case, numbers
from cleave.compute.elements import Elements
from cleave.compute.philox import keep_mask, kept_factor
from cleave.core import operations
from cleave.core.matrix import DType, Region
from cleave.core.operations import AttentionShape, AttentionTensors

_PLAIN = AttentionShape(
    batch=2,
    kv_heads=2,
    group=2,
    q_len=7,
    kv_len=7,
    head_dim=8,
    value_dim=8,
    causal=True,
    scale=0.35,
)
_HARD = replace(
    _PLAIN,
    group=3,
    q_len=5,
    kv_len=11,
    value_dim=6,
    dropout=0.25,
    seed=0x1234_5678_9ABC_DEF0,
    window=8,
)
_STEPS = 4  # roundings on the way to a result: scores, weights, products, the result itself


def attention_cases(dtype: DType) -> list[Case]:
    """Causal attention with padding, and a tile of one with dropout, a window and fewer queries."""
    return [
        *_cases("attention", _PLAIN, dtype, Region(0, 2, 0, 2)),
        *_cases("attention with dropout", _HARD, dtype, Region(1, 2, 1, 2)),
    ]


def _cases(name: str, shape: AttentionShape, dtype: DType, tile: Region) -> tuple[Case, Case]:
    operands = [Block.of(x, dtype) for x in _operands(shape)]
    mask = Block(_mask(shape), DType.BOOL)
    q, k, v, d_out = operands
    exact = _Exact(shape, operands, mask.elements)
    out, lse = exact.forward(ROUNDING[dtype])
    results = Block.of(out.values, dtype), Block.of(lse.values, DType.F32)
    grads = exact.backward(results, ROUNDING[dtype])
    tensors = AttentionTensors(
        q=q.matrix,
        k=k.matrix,
        v=v.matrix,
        out=results[0].matrix,
        lse=results[1].matrix,
        mask=mask.matrix,
    )
    forward = operations.attention_forward(shape, tensors)
    backward = operations.attention_backward(
        shape, tensors, d_out.matrix, (q.matrix, k.matrix, v.matrix)
    )
    return (
        make_case(
            replace(forward, name=f"{name} {dtype.value}"), tile, (q, k, v, mask), (out, lse)
        ),
        make_case(
            replace(backward, name=f"gradient of {name} {dtype.value}"),
            tile,
            (d_out, q, k, v, *results, mask),
            grads,
        ),
    )


def _operands(shape: AttentionShape) -> tuple[Exact, Exact, Exact, Exact]:
    """Queries, keys, values and the gradient of the output, with their heads."""
    queries = (shape.batch, shape.kv_heads * shape.group, shape.q_len)
    keys = (shape.batch, shape.kv_heads, shape.kv_len)
    return (
        numbers((*queries, shape.head_dim), 1),
        numbers((*keys, shape.head_dim), 2),
        numbers((*keys, shape.value_dim), 3),
        numbers((*queries, shape.value_dim), 4),
    )


def _mask(shape: AttentionShape) -> Elements:
    """One sequence padded on the right, one on the left, so that its first queries see nothing."""
    seen = np.ones((shape.batch, shape.kv_len), dtype=np.bool_)
    seen[0, -3:] = False
    seen[1, :3] = False
    return seen


class _Exact:
    """Attention in fp64 over ``(batch, query heads, positions, features)``, keys repeated."""

    def __init__(self, shape: AttentionShape, operands: list[Block], mask: Elements) -> None:
        self._shape = shape
        q, k, v, d_out = (
            block.exact().reshape(like.shape)
            for block, like in zip(operands, _operands(shape), strict=True)
        )
        self._q, self._d_out = q, d_out
        self._k, self._v = (np.repeat(x, shape.group, axis=1) for x in (k, v))
        keys_back = np.arange(shape.q_len)[:, None] - np.arange(shape.kv_len)
        keys_back += shape.kv_len - shape.q_len
        visible = mask[:, None, None, :] & (keys_back >= 0)
        if shape.window:
            visible = visible & (keys_back < shape.window)
        scores = q @ self._k.swapaxes(-1, -2) * shape.scale
        self._scores = np.where(visible, scores, -np.inf)
        kept = keep_mask(np, [0], scores.size, seed=shape.seed, dropout=shape.dropout)
        self._kept = kept.reshape(scores.shape) * kept_factor(shape.dropout)

    def forward(self, rounding: float) -> tuple[Expected, Expected]:
        """The output and the log-sum-exp."""
        with np.errstate(divide="ignore"):
            lse = np.log(np.exp(self._scores).sum(-1))
        weights = self._weights(lse) * self._kept
        lse_error = np.where(np.isfinite(lse), max(rounding, 2e-6) * (1 + np.abs(lse)), 0)
        return (
            self._expected(weights @ self._v, weights @ np.abs(self._v) * rounding),
            Expected(_flat(lse), _flat(lse_error)),
        )

    def backward(self, results: tuple[Block, Block], rounding: float) -> tuple[Expected, ...]:
        """Gradients of queries, keys and values, from the results as they cross the wire."""
        out = results[0].exact().reshape(self._d_out.shape)
        weights = self._weights(results[1].exact().reshape(self._scores.shape[:-1]))
        kept = weights * self._kept
        d_weights = self._d_out @ self._v.swapaxes(-1, -2) * self._kept
        d_size = np.abs(self._d_out) @ np.abs(self._v).swapaxes(-1, -2) * self._kept
        own = self._d_out * out
        d_scores = weights * (d_weights - own.sum(-1, keepdims=True)) * self._shape.scale
        size = weights * (d_size + np.abs(own).sum(-1, keepdims=True)) * self._shape.scale
        return (
            self._expected(d_scores @ self._k, size @ np.abs(self._k) * rounding),
            self._over_group(d_scores, self._q, size, rounding),
            self._over_group(kept, self._d_out, kept, rounding),
        )

    def _weights(self, lse: Exact) -> Exact:
        weights: Exact = np.exp(self._scores - np.where(np.isfinite(lse), lse, 0)[..., None])
        return weights

    def _over_group(self, x: Exact, y: Exact, size: Exact, rounding: float) -> Expected:
        """``xᵀ @ y`` summed over the query heads that share keys."""
        shape = self._shape
        grouped = (shape.batch, shape.kv_heads, shape.group, shape.kv_len, y.shape[-1])
        values = (x.swapaxes(-1, -2) @ y).reshape(grouped).sum(2)
        error = (size.swapaxes(-1, -2) @ np.abs(y)).reshape(grouped).sum(2) * rounding
        return self._expected(values, error)

    def _expected(self, values: Exact, error: Exact) -> Expected:
        return Expected(_flat(values), _flat(error) * _STEPS)


def _flat(x: Exact) -> Exact:
    return x.reshape(x.shape[0], -1)
