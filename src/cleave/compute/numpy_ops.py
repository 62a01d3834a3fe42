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
from cleave.compute.executor import (
    Function,
    check_norm,
    check_pad,
    check_slice,
    sizes_without_minus_one,
)
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


def _gelu_backward(grad: Array, x: Array, approximate: str) -> Array:
    if approximate == "tanh":
        scale = math.sqrt(2 / math.pi)
        inner = np.tanh(scale * (x + 0.044715 * x**3))
        slope = scale * (1 + 3 * 0.044715 * x**2) * (1 - inner**2)
        return grad * 0.5 * (1 + inner + x * slope)
    if approximate == "none":
        density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        return grad * (0.5 * (1 + _erf(x * math.sqrt(0.5))) + x * density)
    raise ValueError(f"approximate is {approximate!r}, expected 'none' or 'tanh'")


def _sigmoid(x: Array) -> Array:
    """Without overflow: the exponential is of what is not positive."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def _softmax(x: Array, dim: int) -> Array:
    exponentials = np.exp(x - np.max(x, axis=dim, keepdims=True))
    exponentials /= exponentials.sum(axis=dim, keepdims=True)
    return exponentials


def _softmax_backward(grad: Array, out: Array, dim: int) -> Array:
    weighted = grad * out
    return weighted - out * weighted.sum(axis=dim, keepdims=True)


def _bmm(a: Array, b: Array) -> Array:
    if a.ndim != 3 or b.ndim != 3 or a.shape[0] != b.shape[0]:
        raise ValueError(f"shapes are {a.shape} and {b.shape}, expected (n, m, k) and (n, k, l)")
    return np.matmul(a, b)


def _mean(x: Array, dims: tuple[int, ...] | None = None, keep: bool = False) -> Array:
    return np.asarray(np.mean(x, axis=dims or None, keepdims=keep))


def _expand(x: Array, sizes: tuple[int, ...]) -> Array:
    kept = (1,) * (len(sizes) - x.ndim) + x.shape
    shape = tuple(old if new == -1 else new for old, new in zip(kept, sizes, strict=True))
    return np.broadcast_to(x, shape)


def _slice(x: Array, dim: int, start: int, stop: int) -> Array:
    check_slice(x.shape, dim, start, stop)
    return np.moveaxis(np.moveaxis(x, dim, 0)[start:stop], 0, dim)


def _pad(x: Array, dim: int, before: int, after: int) -> Array:
    check_pad(x.shape, dim, before, after)
    widths = [(0, 0)] * x.ndim
    widths[dim] = (before, after)
    return np.pad(x, widths)


def _squeeze(x: Array, dim: int) -> Array:
    return np.squeeze(x, axis=dim) if x.shape[dim] == 1 else x


def _where(condition: Array, a: Array | float, b: Array | float) -> Array:
    """In the type of the arrays among ``a`` and ``b``: a number takes theirs."""
    like = next((x for x in (a, b) if isinstance(x, np.ndarray)), None)
    if like is None:
        return np.where(condition, np.float32(a), np.float32(b))
    wide = [decode(x) if isinstance(x, np.ndarray) else decode(like).dtype.type(x) for x in (a, b)]
    return _like(like, np.where(condition, *wide))


def _layer_norm(
    x: Array, n_dims: int, weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    check_norm(x.shape, n_dims)
    axes = tuple(range(-n_dims, 0))
    wide = decode(x)
    mean = wide.mean(axis=axes, keepdims=True)
    rstd = 1 / np.sqrt(((wide - mean) ** 2).mean(axis=axes, keepdims=True) + eps)
    out = (wide - mean) * rstd
    out = out if weight is None else out * decode(weight)
    out = out if bias is None else out + decode(bias)
    return _like(x, out), mean, rstd


def _layer_norm_backward(
    grad: Array, x: Array, mean: Array, rstd: Array, n_dims: int, weight: Array | None
) -> tuple[Array, Array, Array]:
    check_norm(x.shape, n_dims)
    axes = tuple(range(-n_dims, 0))
    wide_grad = decode(grad)
    normal = (decode(x) - decode(mean)) * decode(rstd)
    others = tuple(range(x.ndim - n_dims))
    d_weight, d_bias = (wide_grad * normal).sum(axis=others), wide_grad.sum(axis=others)
    scaled = wide_grad if weight is None else wide_grad * decode(weight)
    along = (scaled * normal).mean(axis=axes, keepdims=True)
    dx = (scaled - scaled.mean(axis=axes, keepdims=True) - normal * along) * decode(rstd)
    return _like(x, dx), _like(x, d_weight), _like(x, d_bias)


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
    "bmm": _in_fp32(_bmm),
    "cast": _cast,
    "cat": lambda a, b, dim: np.concatenate((a, b), axis=dim),
    "clone": np.copy,
    "div": _in_fp32(np.divide),
    "dropout": _in_fp32(_dropout),
    "exp": _in_fp32(np.exp),
    "expand": _expand,
    "full_like": _in_fp32(np.full_like),
    "gelu": _in_fp32(_gelu),
    "gelu_backward": _in_fp32(_gelu_backward),
    "layer_norm": _layer_norm,
    "layer_norm_backward": _layer_norm_backward,
    "mean": _in_fp32(_mean),
    "mm": _in_fp32(_mm),
    "mul": _in_fp32(np.multiply),
    "neg": _in_fp32(np.negative),
    "pad": _pad,
    "permute": np.transpose,
    "pow": _in_fp32(np.power),
    "relu": _in_fp32(lambda x: np.maximum(x, 0)),
    "rsqrt": _in_fp32(lambda x: 1 / np.sqrt(x)),
    "sigmoid": _in_fp32(_sigmoid),
    "silu": _in_fp32(lambda x: x * _sigmoid(x)),
    "slice": _slice,
    "softmax": _in_fp32(_softmax),
    "softmax_backward": _in_fp32(_softmax_backward),
    "squeeze": _squeeze,
    "sub": _in_fp32(np.subtract),
    "sum": _in_fp32(_sum),
    "t": _t,
    "tanh": _in_fp32(np.tanh),
    "tanh_backward": _in_fp32(lambda grad, out: grad * (1 - out * out)),
    "transpose": np.swapaxes,
    "unsqueeze": np.expand_dims,
    "view": _view,
    "where": _where,
}
