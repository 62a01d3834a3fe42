"""The ops that programs may use, and what each takes; their meanings are in docs/protocol.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cleave.core.program import Argument, Ref


@dataclass(frozen=True, slots=True)
class Kind:
    """What an argument of an op may be."""

    name: str
    accepts: Callable[[Argument], bool]


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of an op, how many of them it needs, and how many values it makes."""

    kinds: tuple[Kind, ...]
    n_required: int
    n_results: int = 1


def _is_whole(argument: Argument) -> bool:
    return isinstance(argument, int) and not isinstance(argument, bool)


def _is_number(argument: Argument) -> bool:
    return isinstance(argument, (int, float)) and not isinstance(argument, bool)


def _are_whole(argument: Argument) -> bool:
    return isinstance(argument, tuple) and all(_is_whole(item) for item in argument)


_TENSOR = Kind("a value", lambda x: isinstance(x, Ref))
_TENSOR_OR_NONE = Kind("a value or None", lambda x: x is None or isinstance(x, Ref))
_TENSOR_OR_NUMBER = Kind("a value or a number", lambda x: isinstance(x, Ref) or _is_number(x))
_NUMBER = Kind("a number", _is_number)
_WHOLE = Kind("a whole number", _is_whole)
_SIZES = Kind("a tuple of whole numbers", _are_whole)
_SIZES_OR_NONE = Kind("a tuple of whole numbers or None", lambda x: x is None or _are_whole(x))
_FLAG = Kind("a bool", lambda x: isinstance(x, bool))
_TEXT = Kind("a text", lambda x: isinstance(x, str))

_ATTENTION_SETTINGS = (_FLAG, _NUMBER, _WHOLE, _NUMBER, _WHOLE, _WHOLE, _WHOLE, _WHOLE)


def _signature(*kinds: Kind, n_optional: int = 0, n_results: int = 1) -> Signature:
    return Signature(kinds, len(kinds) - n_optional, n_results)


VOCABULARY: Mapping[str, Signature] = {
    "add": _signature(_TENSOR, _TENSOR_OR_NUMBER),
    "attention": _signature(
        _TENSOR, _TENSOR, _TENSOR, _TENSOR_OR_NONE, *_ATTENTION_SETTINGS, n_results=2
    ),
    "attention_backward": _signature(
        *(_TENSOR,) * 6, _TENSOR_OR_NONE, *_ATTENTION_SETTINGS, n_results=3
    ),
    "bmm": _signature(_TENSOR, _TENSOR),
    "cast": _signature(_TENSOR, _TEXT),
    "cat": _signature(_TENSOR, _TENSOR, _WHOLE),
    "clone": _signature(_TENSOR),
    "div": _signature(_TENSOR, _TENSOR_OR_NUMBER),
    "dropout": _signature(_TENSOR, _NUMBER, _WHOLE, _WHOLE, _WHOLE, _WHOLE),
    "exp": _signature(_TENSOR),
    "expand": _signature(_TENSOR, _SIZES),
    "full_like": _signature(_TENSOR, _NUMBER),
    "gelu": _signature(_TENSOR, _TEXT, n_optional=1),
    "gelu_backward": _signature(_TENSOR, _TENSOR, _TEXT),
    "layer_norm": _signature(
        _TENSOR, _WHOLE, _TENSOR_OR_NONE, _TENSOR_OR_NONE, _NUMBER, n_results=3
    ),
    "layer_norm_backward": _signature(*(_TENSOR,) * 4, _WHOLE, _TENSOR_OR_NONE, n_results=3),
    "mean": _signature(_TENSOR, _SIZES_OR_NONE, _FLAG, n_optional=2),
    "mm": _signature(_TENSOR, _TENSOR),
    "mul": _signature(_TENSOR, _TENSOR_OR_NUMBER),
    "neg": _signature(_TENSOR),
    "pad": _signature(_TENSOR, _WHOLE, _WHOLE, _WHOLE),
    "permute": _signature(_TENSOR, _SIZES),
    "pow": _signature(_TENSOR, _NUMBER),
    "relu": _signature(_TENSOR),
    "rsqrt": _signature(_TENSOR),
    "sigmoid": _signature(_TENSOR),
    "silu": _signature(_TENSOR),
    "slice": _signature(_TENSOR, _WHOLE, _WHOLE, _WHOLE),
    "softmax": _signature(_TENSOR, _WHOLE),
    "softmax_backward": _signature(_TENSOR, _TENSOR, _WHOLE),
    "squeeze": _signature(_TENSOR, _WHOLE),
    "sub": _signature(_TENSOR, _TENSOR_OR_NUMBER),
    "sum": _signature(_TENSOR, _SIZES_OR_NONE, _FLAG, n_optional=2),
    "t": _signature(_TENSOR),
    "tanh": _signature(_TENSOR),
    "tanh_backward": _signature(_TENSOR, _TENSOR),
    "transpose": _signature(_TENSOR, _WHOLE, _WHOLE),
    "unsqueeze": _signature(_TENSOR, _WHOLE),
    "view": _signature(_TENSOR, _SIZES),
    "where": _signature(_TENSOR, _TENSOR_OR_NUMBER, _TENSOR_OR_NUMBER),
}
