"""The shape of a model from the ``config.json`` that Hugging Face keeps beside its weights."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from cleave.core.step.model import ModelShape
from cleave.errors import ConfigError

LONGEST_DEFAULT = 4096
"""Tokens of a sequence where nothing else is asked for, if the model takes that many."""

MOST = 10**8
"""No size of a model is as large as this; it is a slip."""

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "dim", "d_model")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_KV_HEADS = ("num_key_value_heads",)
_HEAD_DIM = ("head_dim",)
_FFN = ("intermediate_size", "ffn_dim", "n_inner", "hidden_dim", "ffn_hidden_size")
_POSITIONS = ("max_position_embeddings", "n_positions")
_EXPERTS = ("num_local_experts", "num_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    is_gated: bool = False
    is_tied: bool = False  # where the file does not say
    is_causal: bool = True
    has_vocab: bool = True
    ffn_factor: int | None = None  # times hidden, where the file does not say
    is_qkv_fused: bool = False
    is_gate_fused: bool = False
    n_special_patches: int = 0
    has_experts: bool = False


_GATED, _GATED_TIED = _Kind(is_gated=True), _Kind(is_gated=True, is_tied=True)
_ENCODER = _Kind(is_tied=True, is_causal=False)
# Of each model_type what its file leaves unsaid: taken from the classes of transformers.
KINDS: Mapping[str, _Kind] = {
    "llama": _GATED,
    "mistral": _GATED,
    "mixtral": _Kind(is_gated=True, has_experts=True),
    "qwen2": _GATED,
    "qwen3": _GATED,
    "olmo2": _GATED,
    "phi3": _Kind(is_gated=True, is_qkv_fused=True, is_gate_fused=True),
    "gemma": _GATED_TIED,
    "gemma2": _GATED_TIED,
    "smollm3": _GATED_TIED,
    "opt": _Kind(is_tied=True),
    "gpt2": _Kind(is_tied=True, is_qkv_fused=True, ffn_factor=4),
    "gpt_neo": _Kind(is_tied=True, ffn_factor=4),
    "gptj": _Kind(ffn_factor=4),
    "gpt_neox": _Kind(is_qkv_fused=True),
    "phi": _Kind(),
    "starcoder2": _Kind(is_tied=True),
    "bert": _ENCODER,
    "roberta": _ENCODER,
    "distilbert": _ENCODER,
    "vit": _Kind(is_causal=False, has_vocab=False, n_special_patches=1),
    "deit": _Kind(is_causal=False, has_vocab=False, n_special_patches=2),
}


def shape_of_config(config: Mapping[str, object], name: str) -> ModelShape:
    """The shape that a configuration describes.

    Args:
        config: The file's object.
        name: For people and for errors.

    Raises:
        ConfigError: If its ``model_type`` is not known, a size is missing or is no whole number
            above zero and below `MOST`, or its layers are none that a shape can describe.
    """
    reader = _Reader(config, name)
    kind = reader.kind()
    hidden, n_heads = reader.size(_HIDDEN), reader.size(_HEADS)
    max_length = reader.max_length(kind)
    if config.get("word_embed_proj_dim", hidden) != hidden:
        raise ConfigError(
            f"{name}: word_embed_proj_dim is {config['word_embed_proj_dim']}, expected "
            f"{hidden} as hidden_size: an embedding of another width cannot be planned"
        )
    return ModelShape(
        name=name,
        n_layers=reader.size(_LAYERS),
        hidden=hidden,
        ffn_hidden=reader.size(_FFN, kind.ffn_factor and kind.ffn_factor * hidden),
        n_heads=n_heads,
        n_kv_heads=reader.kv_heads(n_heads),
        head_dim=reader.head_dim(hidden, n_heads),
        vocab=reader.size(("vocab_size",)) if kind.has_vocab else 0,
        is_gated=kind.is_gated,
        is_tied=reader.flag("tie_word_embeddings", kind.is_tied),
        is_causal=kind.is_causal,
        is_qkv_fused=kind.is_qkv_fused,
        is_gate_fused=kind.is_gate_fused,
        default_length=min(max_length or LONGEST_DEFAULT, LONGEST_DEFAULT),
        max_length=max_length,
        n_experts=reader.size(_EXPERTS) if kind.has_experts else 1,
        experts_per_token=reader.size(("num_experts_per_tok",)) if kind.has_experts else 1,
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    config: Mapping[str, object]
    name: str

    def kind(self) -> _Kind:
        given = self.config.get("model_type")
        if isinstance(given, str) and given in KINDS:
            return KINDS[given]
        near = difflib.get_close_matches(str(given), KINDS, n=3) or list(KINDS)
        raise ConfigError(
            f"{self.name}: model_type is {given!r}, expected one of {', '.join(near)}: "
            "if its layers are those of another type, write that one in a copy of the file"
        )

    def size(self, keys: tuple[str, ...], default: int | None = None) -> int:
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < MOST:
                raise ConfigError(
                    f"{self.name}: {key} is {value!r}, expected a whole number above 0"
                    f" and below {MOST:,}"
                )
            return value
        if default is None:
            raise ConfigError(
                f"{self.name}: {keys[0]} is missing (looked for {', '.join(keys)}): add it"
            )
        return default

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{self.name}: {key} is {value!r}, expected true or false")
        return value

    def head_dim(self, hidden: int, n_heads: int) -> int:
        if self.config.get("head_dim") is None and hidden % n_heads:
            raise ConfigError(
                f"{self.name}: {n_heads} heads do not divide the hidden size {hidden}, "
                "and head_dim is missing: add it"
            )
        return self.size(_HEAD_DIM, hidden // n_heads)

    def kv_heads(self, n_heads: int) -> int:
        n_kv_heads = self.size(_KV_HEADS, n_heads)
        if n_heads % n_kv_heads:
            raise ConfigError(
                f"{self.name}: {_KV_HEADS[0]} is {n_kv_heads}, "
                f"expected a number that divides the {n_heads} heads"
            )
        return n_kv_heads

    def max_length(self, kind: _Kind) -> int | None:
        if kind.n_special_patches:
            per_side = self.size(("image_size",)) // self.size(("patch_size",))
            return per_side**2 + kind.n_special_patches
        if all(self.config.get(key) is None for key in _POSITIONS):
            return None
        return self.size(_POSITIONS)
