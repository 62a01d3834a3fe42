"""Attention as one op that tracing does not look into; no device computes it by this code."""

from __future__ import annotations

import math
from typing import Any

import torch

from cleave.train.aten import UntraceableError

Tensor = torch.Tensor


@torch.library.custom_op("cleave::attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float = 1.0,
    window: int = -1,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of the scores; only ever traced."""
    raise NotImplementedError("it stands for the op of a program")


@attention.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Any = None,
    causal: bool = False,
    scale: float = 1.0,
    window: int = -1,
) -> Any:
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    wide = torch.float64 if q.dtype is torch.float64 else torch.float32
    return out, q.new_empty(q.shape[:-1], dtype=wide)


@torch.library.custom_op("cleave::attention_backward", mutates_args=())
def attention_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float = 1.0,
    window: int = -1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values; only ever traced."""
    raise NotImplementedError("it stands for the op of a program")


@attention_backward.register_fake
def _(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Any = None,
    causal: bool = False,
    scale: float = 1.0,
    window: int = -1,
) -> Any:
    return tuple(each.new_empty(each.shape) for each in (q, k, v))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, *ctx.settings = inputs
    ctx.save_for_backward(q, k, v, *output, mask)


def _backward(ctx: Any, d_out: Tensor, d_lse: Tensor) -> tuple[Any, ...]:
    del d_lse
    grads = torch.ops.cleave.attention_backward(d_out, *ctx.saved_tensors, *ctx.settings)
    return *grads, None, None, None, None


attention.register_autograd(_backward, setup_context=_setup)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` for tracing.

    Raises:
        UntraceableError: If it has a mask or dropout, or heads that programs do not know.
    """
    if attn_mask is not None:
        raise UntraceableError("its attention has a mask")
    if dropout_p > 0:
        raise UntraceableError("its attention has dropout")
    heads, kv_heads = query.shape[-3], key.shape[-3]
    if query.dim() != 4 or (heads != kv_heads and not enable_gqa):
        raise UntraceableError(f"its attention has queries of shape {tuple(query.shape)}")
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    out, _ = torch.ops.cleave.attention(query, key, value, None, is_causal, factor, 0)
    result: Tensor = out
    return result
