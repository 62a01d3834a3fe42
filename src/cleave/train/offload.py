"""Offload a model's linear layers and attention in place, and undo it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any, Literal, TypeVar, cast

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import UninitializedParameter

from cleave.compute.torch_types import wire_dtype
from cleave.errors import OffloadError
from cleave.train import hf_attention, versions
from cleave.train.classes import is_layer, layer_class, plain_class, scope_class
from cleave.train.linear import FLOATS
from cleave.train.registry import State, attach, detach, is_anything_attached, state_for, state_of
from cleave.train.runtime import Runtime

log = logging.getLogger("cleave.train")

Model = TypeVar("Model", bound=nn.Module)


def offload(model: Model, fleet: Runtime, place: Literal["auto", "devices"] = "auto") -> Model:
    """The same model, changed in place: its linear layers and attention are done by ``fleet``.

    Names, parameters, state dict, tied weights, hooks, `isinstance` and checkpoints stay as they
    are; a pickle of it holds the plain model. Doing it twice changes nothing. What has to stay on
    the host is logged once, with the reason.

    Args:
        model: Any module. Layers added later stay on the host until it is offloaded again.
        fleet: Does the work.
        place: ``"auto"`` leaves on the host what it does sooner; ``"devices"`` sends all out.

    Raises:
        OffloadError: If ``place`` is unknown, the fleet is closed, or the model is offloaded to
            another fleet.
    """
    if not isinstance(model, nn.Module):
        raise OffloadError(f"expected a torch.nn.Module to offload, got {type(model).__name__}")
    if not hasattr(fleet, "submit"):
        raise OffloadError(f"expected a cleave.Fleet, got {type(fleet).__name__}")
    if getattr(fleet, "is_closed", False):
        raise OffloadError("the fleet is closed: open a new one")
    if place not in ("auto", "devices"):
        raise OffloadError(f"place is {place!r}, expected 'auto' or 'devices'")
    for name, module in model.named_modules():
        before = state_of(module)
        if before is not None and before.runtime is not fleet:
            raise OffloadError(
                f"{name or type(model).__name__} is offloaded to another fleet: "
                "call cleave.restore(model) first"
            )
    state = state_for(fleet, place)
    kept: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        reason = _offload_layer(module, state)
        if reason is not None:
            kept.setdefault(reason, []).append(name or type(module).__name__)
    for reason, names in kept.items():
        log.warning("stays on the host: %s (%s)", _shortened(names), reason)
    if not any(is_layer(module) for module in model.modules()):
        log.warning(
            "%s has no linear layer that can go out: at most its attention does",
            type(model).__name__,
        )
    by_interface = hf_attention.install(model)
    scopes: list[nn.Module] = [model, *_repeated(model)]
    for scope in scopes:
        if not is_layer(scope):
            scope.__class__ = scope_class(plain_class(scope), not by_interface)
            attach(scope, state)
    return model


def restore(model: Model) -> Model:
    """The same model, computing for itself again."""
    for module in model.modules():
        if state_of(module) is not None:
            detach(module)
            module.__class__ = plain_class(module)
    versions.invalidate(model.parameters())
    if not is_anything_attached():
        hf_attention.uninstall()
    return model


def invalidate(model: nn.Module) -> None:
    """Say that weights changed in a way that nobody could see: they are sent anew before use."""
    versions.invalidate(model.parameters())


def _offload_layer(module: nn.Module, state: State) -> str | None:
    """Offload a linear layer; why it cannot be, None if it was or is none."""
    plain = plain_class(module)
    base = _linear_base(plain)
    if base is None:
        return None
    if not is_layer(module):
        reason = _obstacle(module, plain, base)
        if reason is not None:
            return reason
        module.__class__ = layer_class(plain, base is nn.Linear)
    attach(module, state)
    return None


def _linear_base(plain: type[nn.Module]) -> type[nn.Module] | None:
    """Which of the linear layers we know a class derives from."""
    transformers = sys.modules.get("transformers.pytorch_utils")
    conv1d = None if transformers is None else cast("type[nn.Module]", transformers.Conv1D)
    for base in (nn.Linear, conv1d):
        if base is not None and issubclass(plain, base):
            return base
    return None


def _obstacle(module: nn.Module, plain: type[nn.Module], base: type[nn.Module]) -> str | None:
    if issubclass(plain, NonDynamicallyQuantizableLinear):
        return "torch.nn.MultiheadAttention uses its weight and never calls it"
    if plain.forward is not base.forward or "forward" in vars(module):
        return f"{plain.__name__} has a forward of its own"
    weight: Any = module.weight
    if isinstance(weight, UninitializedParameter):
        return "it has no shape yet: run the model once, then offload it"
    if type(weight) not in (torch.Tensor, nn.Parameter):
        return f"its weight is a {type(weight).__name__}"
    if wire_dtype(weight.dtype) not in FLOATS:
        return f"its weight is {weight.dtype}"
    return None


def _repeated(model: nn.Module) -> Iterator[nn.Module]:
    """The layers that a model is a stack of: what checkpointing runs again."""
    for module in model.modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            members = list(module)
            alike = len({plain_class(member) for member in members}) == 1
            if alike and next(members[0].children(), None) is not None:
                yield from members


def _shortened(names: list[str], n_shown: int = 3) -> str:
    rest = len(names) - n_shown
    return ", ".join(names[:n_shown]) + (f" and {rest} more" if rest > 0 else "")
