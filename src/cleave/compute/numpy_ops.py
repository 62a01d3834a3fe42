"""The program ops in numpy alone: bf16 and fp16 come and go as such and are computed in fp32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import numpy as np

from cleave.compute.attention import Attention, AttentionSettings, check_shapes
from cleave.compute.backend import Array
from cleave.compute.elements import BF16, decode, encode
from cleave.compute.executor import Function, sizes_without_minus_one
from cleave.compute.philox import keep_block, kept_factor
from cleave.core.matrix import DType, Region

_MAX_SCORES = 1 << 18  # 1 MiB of fp32: what a core's cache holds
_NARROW = {BF16: DType.BF16, np.dtype(np.float16): DType.F16}
_ERF_NODES, _ERF_WEIGHTS = (x.tolist() for x in np.polynomial.legendre.leggauss(24))


def _in_fp32(function: Callable[..., Array]) -> Callable[..., Array]:
    """``function`` on wide values; narrow again if all its arrays were of one narrow type."""

    @wraps(function)
    def narrowed(*arguments: Any) -> Array:
        types = {x.dtype for x in arguments if isinstance(x, np.ndarray)}
        wide = [decode(x) if isinstance(x, np.ndarray) else x for x in arguments]
        result = function(*wide)
        narrow = _NARROW.get(types.pop()) if len(types) == 1 else None
        return result if narrow is None else encode(result, narrow)

    return narrowed


def _t(x: Array) -> Array:
    if x.ndim > 2:
        raise ValueError(f"shape is {x.shape}, expected at most two dimensions")
    return x.T


def _mm(a: Array, b: Array) -> Array:
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(f"shapes are {a.shape} and {b.shape}, expected two dimensions each")
    return np.matmul(a, b)


def _view(x: Array, sizes: tuple[int, ...]) -> Array:
    return x.reshape(sizes_without_minus_one(x.shape, sizes))


def _sum(x: Array, dims: tuple[int, ...] | None = None, keep: bool = False) -> Array:
    return np.asarray(np.sum(x, axis=dims or None, keepdims=keep))


def _cast(x: Array, dtype: str) -> Array:
    return encode(x, DType(dtype))


def _gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1 + np.tanh(inner))
    if approximate == "none":
        return 0.5 * x * (1 + _erf(x * math.sqrt(0.5)))
    raise ValueError(f"approximate is {approximate!r}, expected 'none' or 'tanh'")


def _erf(x: Array) -> Array:
    """The error function by quadrature: exact to fp64, and it lets other threads run."""
    x = np.clip(x, -6, 6)
    total = np.zeros_like(x)
    for node, weight in zip(_ERF_NODES, _ERF_WEIGHTS, strict=True):
        total += weight * np.exp(-((x * (0.5 + 0.5 * node)) ** 2))
    return total * x / math.sqrt(math.pi)


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def _softmax(x: Array, dim: int) -> Array:
    exponentials = np.exp(x - np.max(x, axis=dim, keepdims=True))
    exponentials /= exponentials.sum(axis=dim, keepdims=True)
    return exponentials


def _dropout(x: Array, p: float, seed: int, row0: int, col0: int, n_cols: int) -> Array:
    n_rows, width = x.shape
    block = Region(row0, row0 + n_rows, col0, col0 + width)
    return x * keep_block(np, block, n_cols, seed=seed, dropout=p) * kept_factor(p)


def _attention(
    q: Array, k: Array, v: Array, mask: Array | None, *settings: Any
) -> tuple[Array, Array]:
    out, lse = _prepared(q, k, v, mask, settings).forward()
    return _like(q, out), lse


def _attention_backward(*arguments: Any) -> tuple[Array, ...]:
    d_out, q, k, v, out, lse, mask, *settings = arguments
    attention = _prepared(q, k, v, mask, tuple(settings))
    grads = attention.backward(decode(d_out), decode(out), decode(lse))
    return tuple(_like(x, grad) for x, grad in zip((q, k, v), grads, strict=True))


def _prepared(
    q: Array, k: Array, v: Array, mask: Array | None, settings: tuple[Any, ...]
) -> Attention:
    check_shapes(q, k, v, mask)
    return Attention(
        np,
        (decode(q), decode(k), decode(v)),
        mask,
        AttentionSettings.of(settings),
        max_scores=_MAX_SCORES,
    )


def _like(model: Array, result: Array) -> Array:
    narrow = _NARROW.get(model.dtype)
    return result if narrow is None else encode(result, narrow)


FUNCTIONS: Mapping[str, Function] = {
    "add": _in_fp32(np.add),
    "attention": _attention,
    "attention_backward": _attention_backward,
    "cast": _cast,
    "clone": np.copy,
    "dropout": _in_fp32(_dropout),
    "gelu": _in_fp32(_gelu),
    "mm": _in_fp32(_mm),
    "mul": _in_fp32(np.multiply),
    "permute": np.transpose,
    "relu": _in_fp32(lambda x: np.maximum(x, 0)),
    "silu": _in_fp32(_silu),
    "softmax": _in_fp32(_softmax),
    "sub": _in_fp32(np.subtract),
    "sum": _in_fp32(_sum),
    "t": _t,
    "transpose": np.swapaxes,
    "view": _view,
}
