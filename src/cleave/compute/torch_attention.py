"""Attention in torch: the CPU's fused kernel where it gives our numbers, else the portable code."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from cleave.compute.attention import Attention, AttentionSettings, check_shapes
from cleave.compute.compute_types import ComputeTypes

Tensor = torch.Tensor

_MAX_SCORES_CPU = 1 << 18  # 1 MiB of fp32: what a core's cache holds
_MAX_SCORES_ACCELERATOR = 1 << 24


def attention(
    types: ComputeTypes, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor]:
    """The op ``attention``: the output, and the scores' log-sum-exp in fp32 (fp64 for fp64)."""
    check_shapes(q, k, v, mask)
    settings = AttentionSettings.of(rest)
    operands = _operands(types, q, k, v)
    # The fused kernel takes a row of scores that are all NaN for one that sees no key.
    if _is_fused(operands, settings) and _is_finite(operands):
        out, lse = _fused_forward(operands, mask, settings)
    else:
        with arrays_on(q.device):
            out, lse = _portable(operands, mask, settings).forward()
    return out.to(q.dtype), lse


def attention_backward(types: ComputeTypes, *arguments: Any) -> tuple[Tensor, ...]:
    """The op ``attention_backward``: gradients of queries, keys and values."""
    d_out, q, k, v, out, lse, mask, *rest = arguments
    check_shapes(q, k, v, mask)
    settings = AttentionSettings.of(tuple(rest))
    operands = _operands(types, q, k, v)
    if _is_fused(operands, settings):
        grads = _fused_backward(operands, (d_out, out, lse), mask, settings)
    else:
        with arrays_on(q.device):
            portable = _portable(operands, mask, settings)
            grads = portable.backward(*(_wide(x) for x in (d_out, out, lse)))
    return tuple(grad.to(x.dtype) for x, grad in zip((q, k, v), grads, strict=True))


def arrays_on(device: torch.device) -> AbstractContextManager[object]:
    """Where portable code makes its arrays; unsaid on the CPU, as saying it slows every call."""
    return nullcontext() if device.type == "cpu" else device


def _operands(
    types: ComputeTypes, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = types.of(q.dtype)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _is_fused(operands: tuple[Tensor, Tensor, Tensor], settings: AttentionSettings) -> bool:
    q, k, v = operands
    return (
        q.device.type == "cpu"
        and min(q.numel(), k.numel()) > 0
        and q.shape[-1] == v.shape[-1]
        and not settings.dropout
        and not settings.window
        and (q.shape[2] == k.shape[2] or not settings.causal)
    )


def _is_finite(operands: tuple[Tensor, Tensor, Tensor]) -> bool:
    return math.isfinite(sum(x.sum().item() for x in operands))


def _fused_forward(
    operands: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, settings: AttentionSettings
) -> tuple[Tensor, Tensor]:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *operands,
        0.0,
        settings.causal,
        attn_mask=_additive(mask, operands[0].dtype),
        scale=settings.scale,
    )
    if mask is not None:  # the kernel says 0 for queries that see no key
        seen = mask != 0
        seen = seen.cumsum(-1) > 0 if settings.causal else seen.any(-1, keepdim=True)
        lse = lse.masked_fill(~seen[:, None], -math.inf)
    return out, lse.contiguous()


def _fused_backward(
    operands: tuple[Tensor, Tensor, Tensor],
    results: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    settings: AttentionSettings,
) -> tuple[Tensor, ...]:
    q = operands[0]
    d_out, out, lse = results
    grads: tuple[Tensor, ...] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        d_out.to(q.dtype),
        *operands,
        out.to(q.dtype),
        _wide(lse).masked_fill(lse == -math.inf, 0.0).to(_wide(q[:0]).dtype),
        0.0,
        settings.causal,
        attn_mask=_additive(mask, q.dtype),
        scale=settings.scale,
    )
    return grads


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None:
        return None
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return bias.masked_fill_(mask == 0, -math.inf)[:, None, None]


def _portable(
    operands: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, settings: AttentionSettings
) -> Attention:
    q, k, v = (_wide(x) for x in operands)
    max_scores = _MAX_SCORES_CPU
    if q.device.type != "cpu":  # as many as `AttentionShape.workspace_bytes` allows for
        declared = q[..., :1].numel() * min(k.shape[2], 1024)
        max_scores = min(declared, _MAX_SCORES_ACCELERATOR)
    return Attention(torch, (q, k, v), mask, settings, max_scores=max_scores)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
