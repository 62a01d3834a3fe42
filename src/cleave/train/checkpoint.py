"""A training run on disk: tensors as safetensors, the rest as JSON; no pickle."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, load_model, save_file, save_model

from cleave.errors import ConfigError

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"


def save(
    folder: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    facts: Mapping[str, object],
) -> Path:
    """The folder that now holds the run; it appears whole or not at all.

    Args:
        folder: Where; an earlier checkpoint there is replaced.
        model: Shared tensors are written once.
        optimizer: Its tensors and its settings are written.
        facts: What else is worth keeping, as JSON: the step, losses, settings.
    """
    half = folder.with_name(folder.name + ".part")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    save_model(model, str(half / WEIGHTS))
    tensors, settings = _flatten(optimizer.state_dict())
    save_file(tensors, half / OPTIMIZER)
    state = {"facts": dict(facts), "optimizer": settings}
    (half / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    return half.rename(folder)


def load(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, object]:
    """The facts that were saved; weights and optimizer state go into what is given.

    Raises:
        ConfigError: If ``folder`` holds no checkpoint.
    """
    if not (folder / STATE).is_file():
        raise ConfigError(f"no checkpoint in {folder}: expected {WEIGHTS}, {OPTIMIZER}, {STATE}")
    state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    load_model(model, str(folder / WEIGHTS))
    if optimizer is not None:
        tensors = load_file(folder / OPTIMIZER)
        optimizer.load_state_dict(_unflatten(tensors, state["optimizer"]))
    facts: dict[str, object] = state["facts"]
    return facts


def _flatten(state: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    tensors: dict[str, torch.Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for index, values in state["state"].items():
        scalars[str(index)] = {}
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{index}.{name}"] = value.contiguous()
            else:
                scalars[str(index)][name] = value
    return tensors, {"scalars": scalars, "param_groups": state["param_groups"]}


def _unflatten(tensors: dict[str, torch.Tensor], settings: dict[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {int(i): v for i, v in settings["scalars"].items()}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        state[int(index)][name] = tensor
    return {"state": state, "param_groups": settings["param_groups"]}
