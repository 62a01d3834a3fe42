"""Shapes of models: published ones by name, others from their ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from cleave.catalog.hf_config import shape_of_config
from cleave.catalog.tables import Row, find, rows
from cleave.core.step.model import ModelShape
from cleave.errors import ConfigError

_CAUSAL_BY_KIND = {"decoder": True, "encoder": False, "vision-encoder": False}
_ALSO_CALLED = {"gpt2": "gpt2-small"}
_WITH_FUSED_QKV = {"GPT-2", "GPT-NeoX"}  # families that are published so
_NARROW_EMBEDDING = "opt-350m"  # its embedding has 512 features, its layers 1,024


def names() -> tuple[str, ...]:
    """Models that have a shape."""
    return tuple(_shapes())


def model_shape(name: str) -> ModelShape:
    """The shape of a published model.

    Args:
        name: As in the table: ``"llama-2-7b"``, in whatever case. ``"gpt2"`` is the smallest of
            its family, as its publisher names it.

    Raises:
        ConfigError: If it is not in the table, or is no stack of equal layers.
    """
    name = _ALSO_CALLED.get(name.strip().casefold(), name)
    row = _rows()[find("model", name, _rows(), none="neither a known model nor a file")]
    if row["name"] not in _shapes():
        raise ConfigError(f"{row['name']} cannot be planned: {_misfit(row)}")
    return _shapes()[row["name"]]


def from_config_json(path: str | Path) -> ModelShape:
    """The shape of a local model.

    Args:
        path: Of a Hugging Face ``config.json``, or of the folder that has one.

    Raises:
        ConfigError: If the file cannot be read, is no configuration, or lacks what
            `cleave.catalog.hf_config.shape_of_config` needs; it names the file and the key.
    """
    file = Path(path)
    if file.is_dir():
        file /= "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{file}: is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file}: is {type(config).__name__}, expected a JSON object")
    name = file.resolve().parent.name if file.stem == "config" else file.stem
    return replace(shape_of_config(config, str(file)), name=name)


@cache
def _rows() -> Mapping[str, Row]:
    return {row["name"]: row for row in rows("models")}


@cache
def _shapes() -> Mapping[str, ModelShape]:
    return {name: _shape(row) for name, row in _rows().items() if not _misfit(row)}


def _misfit(row: Row) -> str:
    if row["kind"] not in _CAUSAL_BY_KIND:
        return f"it is an {row['kind']} model, and a shape is one stack of equal layers"
    if row["name"] == _NARROW_EMBEDDING:
        return "its embedding is narrower than its layers; opt-125m and opt-1.3b are its neighbours"
    return ""


def _shape(row: Row) -> ModelShape:
    return ModelShape(
        name=row["name"],
        n_layers=int(row["layers"]),
        hidden=int(row["hidden"]),
        ffn_hidden=int(row["ffn_hidden"]),
        n_heads=int(row["heads"]),
        n_kv_heads=int(row["kv_heads"]),
        head_dim=int(row["head_dim"]),
        vocab=int(row["vocab"]),
        is_gated=row["gated_mlp"] == "1",
        is_tied=row["tied_embeddings"] == "1",
        is_causal=_CAUSAL_BY_KIND[row["kind"]],
        is_qkv_fused=row["family"] in _WITH_FUSED_QKV,
        default_length=int(row["seq_len_default"]),
        max_length=int(row["max_positions"]),
        n_experts=int(row["experts"]),
        experts_per_token=int(row["experts_per_token"]),
    )
