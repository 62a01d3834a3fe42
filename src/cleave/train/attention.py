"""Attention as one autograd function whose two passes a fleet does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from cleave.compute.torch_types import DTYPES, wire_dtype
from cleave.core.layout import Layout
from cleave.core.matrix import DType, Matrix
from cleave.core.operations import (
    AttentionShape,
    AttentionTensors,
    attention_backward,
    attention_forward,
)
from cleave.train.held import Held, as_matrix, start
from cleave.train.linear import (
    FLOATS,
    autocast_dtype,
    is_plain,
    kept,
    refuse_double_backward,
    wire_for,
)
from cleave.train.registry import State


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSettings:
    """What an attention does besides its tensors.

    Attributes:
        causal: Query i of the last ``q_len`` positions sees keys up to its own.
        scale: Factor on the scores; None for ``1 / sqrt(head_dim)``.
        dropout: Probability that an attention weight is dropped.
        window: Sees at most this many keys back, itself included; 0 means all.
    """

    causal: bool
    scale: float | None = None
    dropout: float = 0.0
    window: int = 0


def attend(
    state: State,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    settings: AttentionSettings,
) -> torch.Tensor | None:
    """The attention's output ``(batch, heads, q_len, value_dim)``, None if the host is to do it.

    Args:
        state: What the model is offloaded with.
        qkv: Queries ``(batch, heads, q_len, head_dim)``, keys
            ``(batch, kv_heads, kv_len, head_dim)`` and values like them with ``value_dim``;
            ``heads`` is a multiple of ``kv_heads``.
        mask: Which keys may be seen, ``(batch, kv_len)`` bool, or None for all.
        settings: The rest.
    """
    if not all(is_plain(tensor) for tensor in qkv):
        return None
    compute = _compute_dtype(qkv)
    if compute is None:
        state.note(f"attention in {' x '.join(str(tensor.dtype) for tensor in qkv)}")
        return None
    shape = _shape(qkv, settings)
    if shape is None:
        return None
    wire = wire_for(state, compute)
    tensors = _shape_only(shape, mask is not None, wire)
    if not state.goes_out((attention_forward(shape, tensors),)):
        return None
    if shape.dropout > 0:
        shape = _with_seed(shape)
    call = _Call(state, shape, compute, wire)
    out: torch.Tensor = _AttentionFunction.apply(*qkv, mask, call)  # type: ignore[no-untyped-call]
    return out


class Intercept(TorchFunctionMode):
    """Sends the `torch.nn.functional.scaled_dot_product_attention` of hand-written models out."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self._state = state

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        """What ``func`` gives."""
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            out = _intercepted(self._state, *args, **kwargs)
            if out is not None:
                return out
        return func(*args, **kwargs)


def _intercepted(
    state: State,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor | None:
    q_len, kv_len = query.shape[-2], key.shape[-2]
    if query.dim() != 4 or (query.shape[1] != key.shape[1] and not enable_gqa):
        state.note(f"attention over queries of shape {tuple(query.shape)}: expected 4 dimensions")
        return None
    if is_causal and q_len != kv_len:
        # torch counts positions from the first key here, `AttentionShape` from the last.
        state.note("causal attention with fewer queries than keys")
        return None
    mask: torch.Tensor | None = None
    if attn_mask is not None:
        mask = _key_mask(attn_mask, query.shape[0], kv_len)
        if mask is None:
            state.note(f"attention with a mask of shape {tuple(attn_mask.shape)}")
            return None
    settings = AttentionSettings(causal=is_causal, scale=scale, dropout=dropout_p)
    return attend(state, (query, key, value), mask, settings)


def _key_mask(mask: torch.Tensor, batch: int, kv_len: int) -> torch.Tensor | None:
    """A mask that hides keys alike from all heads and queries as ``(batch, kv_len)``, else None."""
    if mask.dtype is not torch.bool or mask.shape[-1] != kv_len or mask.dim() > 4:
        return None
    sizes = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    if sizes[1:3] != (1, 1):
        return None
    return mask.reshape(sizes[0], kv_len).expand(batch, kv_len)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of an attention."""

    state: State
    shape: AttentionShape
    compute: DType
    wire: DType


class _AttentionFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        call: _Call,
    ) -> torch.Tensor:
        shape, runtime = call.shape, call.state.runtime
        batch = shape.batch
        held = [_adopt(call, tensor) for tensor in (query, key, value)]
        held_mask = (
            None if mask is None else Held.adopt(runtime, as_matrix(mask, shape.kv_len, DType.BOOL))
        )
        heads = shape.kv_heads * shape.group
        out = Held.allocate(runtime, batch, heads * shape.q_len * shape.value_dim, call.wire)
        lse = Held.allocate(runtime, batch, heads * shape.q_len, _lse_dtype(call.wire))
        tensors = _tensors([*held, out, lse], held_mask)
        inputs = held if held_mask is None else [*held, held_mask]
        work = attention_forward(shape, tensors)
        flight = start(runtime, (work,), (), (inputs, (out, lse)), call.state.orphans)
        result, _ = flight.wait()
        ctx.call = call
        ctx.layout = flight.layout
        ctx.like = tuple((t.shape, t.dtype, t.device) for t in (query, key, value))
        ctx.save_for_backward(
            *(matrix.tensor for matrix in (*held, out, lse)),
            None if held_mask is None else held_mask.tensor,
        )
        every = (*held, out, lse, held_mask)
        ctx.held = tuple(None if each is None else kept(call.state, each) for each in every)
        ctx.set_materialize_grads(False)
        whole = result.view(batch, heads, shape.q_len, shape.value_dim)
        return whole.to(device=query.device, dtype=DTYPES[call.compute])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        refuse_double_backward()
        out_grad = grads[0]
        if out_grad is None:
            return None, None, None, None, None
        call: _Call = ctx.call
        runtime = call.state.runtime
        saved = ctx.saved_tensors
        at_hand = ctx.held or [None] * len(saved)
        held = [
            each or call.state.saved(tensor)
            for tensor, each in zip(saved, at_hand, strict=True)
            if tensor is not None
        ]
        ctx.held = None
        tensors = _tensors(held[:5], held[5] if len(held) > 5 else None)
        held_grad = _adopt(call, out_grad)
        results = [
            Held.allocate(runtime, matrix.n_rows, matrix.n_cols, matrix.dtype)
            for matrix in (tensors.q, tensors.k, tensors.v)
        ]
        q_grad, k_grad, v_grad = (result.matrix for result in results)
        work = attention_backward(call.shape, tensors, held_grad.matrix, (q_grad, k_grad, v_grad))
        inputs = [held_grad, *held]
        hints: tuple[Layout, ...] = (ctx.layout,)
        flight = start(runtime, (work,), hints, (inputs, results), call.state.orphans)
        whole = flight.wait()
        return (
            *(
                grad.view(shape).to(device=device, dtype=dtype)
                for grad, (shape, dtype, device) in zip(whole, ctx.like, strict=True)
            ),
            None,
            None,
        )


def _adopt(call: _Call, tensor: torch.Tensor) -> Held:
    """A tensor of all heads as ``(batch, heads * positions * features)``."""
    n_cols = tensor[0].numel()
    return Held.adopt(call.state.runtime, as_matrix(tensor, n_cols, call.wire))


def _tensors(held: list[Held], mask: Held | None) -> AttentionTensors:
    q, k, v, out, lse = (matrix.matrix for matrix in held)
    return AttentionTensors(
        q=q, k=k, v=v, out=out, lse=lse, mask=None if mask is None else mask.matrix
    )


def _shape_only(shape: AttentionShape, masked: bool, wire: DType) -> AttentionTensors:
    """Matrices that are not registered."""
    queries = shape.kv_heads * shape.group * shape.q_len
    keys = shape.kv_heads * shape.kv_len

    def matrix(n_cols: int, dtype: DType) -> Matrix:
        return Matrix(0, shape.batch, n_cols, dtype)

    return AttentionTensors(
        q=matrix(queries * shape.head_dim, wire),
        k=matrix(keys * shape.head_dim, wire),
        v=matrix(keys * shape.value_dim, wire),
        out=matrix(queries * shape.value_dim, wire),
        lse=matrix(queries, _lse_dtype(wire)),
        mask=matrix(shape.kv_len, DType.BOOL) if masked else None,
    )


def _shape(
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor], settings: AttentionSettings
) -> AttentionShape | None:
    """The shape, None if the tensors don't fit together or are empty."""
    q, k, v = qkv
    batch, heads, q_len, head_dim = q.shape
    kv_heads, kv_len, value_dim = k.shape[1], k.shape[2], v.shape[3]
    fits = k.shape == (batch, kv_heads, kv_len, head_dim) and v.shape[:3] == k.shape[:3]
    if not fits or 0 in (*q.shape, *k.shape, value_dim) or heads % kv_heads:
        return None
    return AttentionShape(
        batch=batch,
        kv_heads=kv_heads,
        group=heads // kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=head_dim,
        value_dim=value_dim,
        causal=settings.causal,
        scale=head_dim**-0.5 if settings.scale is None else settings.scale,
        dropout=settings.dropout,
        window=settings.window,
    )


def _with_seed(shape: AttentionShape) -> AttentionShape:
    """With a key for its dropout, drawn as torch draws: see `docs/decisions/0005-dropout.md`."""
    seed = int(torch.randint(0, 2**63 - 1, (), dtype=torch.int64))
    return replace(shape, seed=seed)


def _lse_dtype(wire: DType) -> DType:
    return DType.F64 if wire is DType.F64 else DType.F32


def _compute_dtype(qkv: tuple[torch.Tensor, ...]) -> DType | None:
    """The type that the three share where they meet, None if they don't or it stays here."""
    dtypes = {autocast_dtype(tensor) for tensor in qkv}
    dtype = wire_dtype(dtypes.pop()) if len(dtypes) == 1 else None
    return dtype if dtype in FLOATS else None
