"""Classes that take the place of a module's own: same name, same state, another forward.

They are made once per class. A pickle of an instance names the plain class, so that it loads where
there is no Cleave; a deep copy is offloaded like its original.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import sys
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from cleave.train.attention import Intercept
from cleave.train.gates import forward_pass
from cleave.train.linear import linear
from cleave.train.linear_plan import LinearPlan
from cleave.train.registry import attach, state_of

_PLAIN = "_cleave_plain"
_LAYER = "_cleave_layer"


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The class that a module had before it was offloaded."""
    own = type(module)
    plain: type[nn.Module] = vars(own).get(_PLAIN, own)
    return plain


def is_layer(module: nn.Module) -> bool:
    """Whether a module is an offloaded linear layer."""
    return _LAYER in vars(type(module))


_made: dict[tuple[type[nn.Module], str, bool], type[nn.Module]] = {}


def layer_class(plain: type[nn.Module], out_in: bool) -> type[nn.Module]:
    """``plain``, whose GEMMs a fleet does.

    Args:
        plain: A linear layer.
        out_in: Whether its weight is stored as ``(outs, ins)``.
    """
    key = (plain, "layer", out_in)
    if key not in _made:
        _made[key] = _make_layer_class(plain, LinearPlan(out_in))
    return _made[key]


def scope_class(plain: type[nn.Module], intercepts: bool) -> type[nn.Module]:
    """``plain``, whose forward is a pass: its weights get their gates first.

    Args:
        plain: A model, or one of its repeated layers.
        intercepts: Whether `torch.nn.functional.scaled_dot_product_attention` in it goes out too.
    """
    key = (plain, "scope", intercepts)
    if key not in _made:
        _made[key] = _make_scope_class(plain, intercepts)
    return _made[key]


def _make_layer_class(plain: type[nn.Module], plan: LinearPlan) -> type[nn.Module]:

    @functools.wraps(plain.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        _keep_the_compiler_out()
        state = state_of(self)
        x: torch.Tensor = args[0] if args else next(iter(kwargs.values()))
        y = None if state is None else linear(self, x, state, plan)
        return cast(torch.Tensor, plain.forward(self, x)) if y is None else y

    return _derived(plain, forward, {_LAYER: True})


def _make_scope_class(plain: type[nn.Module], intercepts: bool) -> type[nn.Module]:
    @functools.wraps(plain.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> object:
        _keep_the_compiler_out()
        state = state_of(self)
        if state is None:
            return plain.forward(self, *args, **kwargs)
        around = Intercept(state) if intercepts else None
        with forward_pass(state, self, _weights(self), around):
            return plain.forward(self, *args, **kwargs)

    return _derived(plain, forward, {})


def _weights(module: nn.Module) -> Iterator[torch.Tensor]:
    """The weights of the offloaded layers in a module: nearly always in order of use."""
    for part in module.modules():
        if is_layer(part):
            yield cast(torch.Tensor, part.weight)


def _keep_the_compiler_out() -> None:
    """Have torch.compile, if it is in use, leave all of Cleave's code as it is: a graph break."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None and not vars(rules).get("_cleave_is_skipped"):
        vars(rules)["_cleave_is_skipped"] = True
        rules.add("cleave")


def _derived(plain: type[nn.Module], forward: Any, extra: dict[str, object]) -> type[nn.Module]:
    forward._torchdynamo_disable = True  # runs as it is, and so can say the same of all the rest

    def reduced(self: nn.Module, protocol: Any) -> Any:
        make, args, *rest = cast("tuple[Any, ...]", plain.__reduce_ex__(self, protocol))
        if make.__name__ == "__newobj__":  # refuses any class but the object's own
            return (copyreg._reconstructor, (plain, object, None), *rest)  # type: ignore[attr-defined]
        return (make, tuple(plain if arg is type(self) else arg for arg in args), *rest)

    def deep_copy(self: nn.Module, memo: dict[int, object]) -> nn.Module:
        own = getattr(plain, "__deepcopy__", None)
        if own is not None:
            twin: nn.Module = own(self, memo)
            twin.__class__ = type(self)
        else:
            twin = type(self).__new__(type(self))
            memo[id(self)] = twin
            twin.__setstate__(copy.deepcopy(vars(self), memo))
        state = state_of(self)
        if state is not None:
            attach(twin, state)
        return twin

    make_class: Any = type(plain)
    namespace = {
        **extra,
        _PLAIN: plain,
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
        "__reduce_ex__": reduced,
        "__deepcopy__": deep_copy,
        "forward": forward,
    }
    return cast("type[nn.Module]", make_class(plain.__name__, (plain,), namespace))
