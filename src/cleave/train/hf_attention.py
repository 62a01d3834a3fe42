"""Attention of Hugging Face models: our functions lie over theirs named ``"sdpa"``.

A model asks two tables of transformers for the functions that its config names: one for the
attention, one for its mask. With a name of our own the config would carry it into pickles and
copies, and models that look for the name ``"sdpa"`` would go other ways. So while a model is
offloaded, our functions stand in the tables in its place; for models that are not offloaded, and
for what we cannot do, they call what stood there before.

Our mask says which keys may be seen and how, ``(batch, kv_len)`` int32: 0 for a hidden key; w for a
key that the w queries from its own position on see; -1 for a key that all queries see. Unlike
HF's own it has no entry per query, and unlike an argument of the layer it cannot get lost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from cleave.train.attention import AttentionSettings, attend
from cleave.train.gates import current_pass
from cleave.train.registry import State, state_around

NAME = "sdpa"
ALL_LATER = 2**31 - 1
ALL_QUERIES = -1

_below: dict[str, Callable[..., Any]] = {}


def install(model: nn.Module) -> bool:
    """Whether all of the model's attention is asked for through the tables, which now give ours."""
    parts = _pretrained(model)
    tables = _tables()
    if tables is None or not parts:
        return False
    if not _below:
        attention, masks = tables
        _below.update(attention=attention[NAME], mask=masks[NAME])
        type(attention).register(NAME, _attention)
        type(masks).register(NAME, _mask)
    return all(part._can_set_attn_implementation() for part in parts)


def uninstall() -> None:
    """Put the tables back as they were."""
    tables = _tables()
    if _below and tables is not None:
        attention, masks = tables
        type(attention).register(NAME, _below["attention"])
        type(masks).register(NAME, _below["mask"])
        _below.clear()


def _tables() -> tuple[Any, Any] | None:
    modeling = sys.modules.get("transformers.modeling_utils")
    masking = sys.modules.get("transformers.masking_utils")
    attention = getattr(modeling, "ALL_ATTENTION_FUNCTIONS", None)
    masks = getattr(masking, "ALL_MASK_ATTENTION_FUNCTIONS", None)
    return None if attention is None or masks is None else (attention, masks)


def _pretrained(model: nn.Module) -> list[Any]:
    modeling = sys.modules.get("transformers.modeling_utils")
    if modeling is None:
        return []
    return [part for part in model.modules() if isinstance(part, modeling.PreTrainedModel)]


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What transformers asks of an attention function: ``(batch, q_len, heads, value_dim)``."""
    state = state_around(module)
    if state is not None and _can_do(state, attention_mask, kwargs):
        causal, window = _pattern(module, query, key, attention_mask, kwargs)
        settings = AttentionSettings(
            causal=causal,
            scale=kwargs.get("scaling"),
            dropout=kwargs.get("dropout", 0.0),
            window=window,
        )
        seen = None if attention_mask is None else attention_mask != 0
        out = attend(state, (query, key, value), seen, settings)
        if out is not None:
            return out.transpose(1, 2).contiguous(), None
    if attention_mask is not None and _is_ours(attention_mask):
        attention_mask = _dense(attention_mask, query.shape[2])
    result: tuple[torch.Tensor, torch.Tensor | None] = _below["attention"](
        module, query, key, value, attention_mask, **kwargs
    )
    return result


def _is_ours(mask: torch.Tensor) -> bool:
    return mask.dim() == 2 and mask.dtype is torch.int32


def _can_do(state: State, mask: torch.Tensor | None, kwargs: dict[str, Any]) -> bool:
    for name in ("softcap", "s_aux", "position_bias", "head_mask"):
        if kwargs.get(name) is not None:
            state.note(f"attention with {name}")
            return False
    if kwargs.get("output_attentions"):
        state.note("attention whose weights are asked for")
        return False
    if mask is not None and not _is_ours(mask):
        state.note(f"attention with a mask of shape {tuple(mask.shape)}")
        return False
    return True


def _pattern(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    kwargs: dict[str, Any],
) -> tuple[bool, int]:
    """Whether queries see only what is before them, and how far back (0: all)."""
    q_len = query.shape[2]
    if mask is None:
        causal = kwargs.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        return bool(causal) and q_len > 1, 0
    code = int(mask.amax()) if mask.numel() else 0
    if code <= 0:
        return False, 0
    return True, 0 if code == ALL_LATER else code


def _dense(mask: torch.Tensor, q_len: int) -> torch.Tensor:
    """Our mask as one that torch takes, ``(batch, 1, q_len, kv_len)`` bool."""
    kv_len = mask.shape[1]
    queries = torch.arange(kv_len - q_len, kv_len, device=mask.device)[:, None]
    steps = queries - torch.arange(kv_len, device=mask.device)  # (q_len, kv_len)
    reach = mask[:, None, None, :]  # (batch, 1, 1, kv_len)
    return (reach == ALL_QUERIES) | ((steps >= 0) & (steps < reach))


def _mask(**kwargs: Any) -> torch.Tensor | None:
    """What transformers asks of a mask function; ours in an offloaded model if it can say all."""
    code = _code(kwargs)
    if code is None:
        below: torch.Tensor | None = _below["mask"](**kwargs)
        return below
    batch, q_len, kv_len = kwargs["batch_size"], kwargs["q_length"], kwargs["kv_length"]
    padding: torch.Tensor | None = kwargs.get("attention_mask")
    if padding is None:
        seen = torch.ones(batch, kv_len, dtype=torch.bool, device=kwargs.get("device", "cpu"))
    else:
        first = kwargs.get("kv_offset", 0)
        seen = padding[:, first : first + kv_len].bool()
        seen = nn.functional.pad(seen, (0, kv_len - seen.shape[1]))
    says_itself = q_len in (1, kv_len) and (code == ALL_QUERIES or code >= kv_len)
    if says_itself and bool(seen.all()):
        return None
    return seen.int() * code


def _code(kwargs: dict[str, Any]) -> int | None:
    """What our mask says of a key that is not padding, None if it cannot say what is asked for."""
    here = current_pass()
    if here is None or not all(part._supports_flash_attn for part in _pretrained(here.root)):
        return None  # models for flash attention are written to take a mask of two dimensions
    padding = kwargs.get("attention_mask")
    if kwargs.get("use_vmap") or (padding is not None and padding.dim() != 2):
        return None
    masking: Any = sys.modules["transformers.masking_utils"]
    pattern = kwargs.get("mask_function")
    if pattern is masking.bidirectional_mask_function:
        return ALL_QUERIES if kwargs.get("allow_is_bidirectional_skip") else None
    ends = [kwargs.get(f"{of}_offset", 0) + kwargs.get(f"{of}_length", -1) for of in ("q", "kv")]
    if isinstance(ends[0], torch.Tensor) or ends[0] != ends[1]:
        return None  # a cache with room to spare
    if not kwargs.get("allow_is_causal_skip", True):
        return None
    if pattern is masking.causal_mask_function:
        return ALL_LATER
    return kwargs.get("local_size") if _is_window(pattern, masking.causal_mask_function) else None


def _is_window(pattern: object, causal: object) -> bool:
    """Whether a mask function is exactly "causal and not too far back"."""
    cells: list[Any] = list(getattr(pattern, "__closure__", None) or ())
    parts: object = cells[0].cell_contents if len(cells) == 1 else None
    if not isinstance(parts, tuple) or len(parts) != 2:
        return False
    name: str = getattr(parts[0], "__qualname__", "")
    return parts[1] is causal and name.startswith("sliding_window_overlay.")
