"""From a traced graph of ATen ops to the listed ops of a program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch import fx

from cleave.compute.torch_types import wire_dtype
from cleave.core.program import Argument, Op, Program, Ref
from cleave.errors import OffloadError

VIEWS = frozenset(
    (
        "alias",
        "detach",
        "expand",
        "permute",
        "slice",
        "squeeze",
        "t",
        "transpose",
        "unsqueeze",
        "view",
    )
)
"""ATen ops that only look at what is there: it costs nothing to do them again."""


class UntraceableError(OffloadError):
    """A layer uses what programs cannot say; it says what."""


class ProgramWriter:
    """Writes a program, one ATen op of a graph after the other.

    Args:
        n_inputs: Of the program.
    """

    def __init__(self, n_inputs: int) -> None:
        """Begin with no ops."""
        self._n_inputs = n_inputs
        self._ops: list[Op] = []
        self._n_values = n_inputs
        self._numbers: dict[Any, int] = {}  # of a node, or of one of the results of a node

    def put(self, node: fx.Node, number: int) -> None:
        """A node's value is that number."""
        self._numbers[node] = number

    def has(self, node: fx.Node) -> bool:
        """Whether a node's value is known."""
        return node in self._numbers

    def number(self, node: fx.Node) -> int:
        """The number of a node's value."""
        return self._numbers[node]

    def emit(self, name: str, *args: Argument, n_results: int = 1) -> int:
        """Add an op; the number of its first result."""
        self._ops.append(Op(name, args, n_results))
        first, self._n_values = self._n_values, self._n_values + n_results
        return first

    def program(self, outputs: Sequence[int]) -> Program:
        """All that was written."""
        return Program(n_inputs=self._n_inputs, ops=tuple(self._ops), outputs=tuple(outputs))

    def write(self, node: fx.Node) -> None:
        """Write one call of a graph.

        Raises:
            UntraceableError: If no listed op does what it does.
        """
        if node.target is operator.getitem:
            source, index = cast("tuple[fx.Node, int]", node.args)
            self._numbers[node] = self._numbers[source, index]
            return
        name = op_name(node)
        rule = _RULES.get(name)
        if rule is None:
            raise UntraceableError(f"it uses {name}, which programs do not have")
        result = rule(self, node)
        if isinstance(result, tuple):
            self._numbers.update({(node, i): number for i, number in enumerate(result)})
        else:
            self._numbers[node] = result

    def ref(self, argument: Any) -> Ref:
        """An argument that is a node."""
        return Ref(self._numbers[argument])

    def ref_or_number(self, argument: Any) -> Ref | float:
        """An argument that is a node or a number."""
        return self.ref(argument) if isinstance(argument, fx.Node) else argument


def op_name(node: fx.Node) -> str:
    """The name of what a node calls, without namespace and overload."""
    if node.target is operator.getitem:
        return "getitem"
    return str(node.target).split(".")[1]


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape that tracing found for a node."""
    return tuple(node.meta["val"].shape)


def is_view(node: fx.Node) -> bool:
    """Whether a node only looks at what another made."""
    return node.op == "call_function" and op_name(node) in VIEWS


Rule = Callable[[ProgramWriter, fx.Node], "int | tuple[int, ...]"]


def _elementwise(name: str) -> Rule:
    def rule(writer: ProgramWriter, node: fx.Node) -> int:
        if node.kwargs.get("alpha", 1) != 1 or len(node.args) > 2:
            raise UntraceableError(f"it uses {op_name(node)} with a factor")
        return writer.emit(name, *(writer.ref_or_number(each) for each in node.args))

    return rule


def _commutative(name: str) -> Rule:
    """As `_elementwise`, of arguments that may stand in any order: a value comes first."""
    plain = _elementwise(name)

    def rule(writer: ProgramWriter, node: fx.Node) -> int | tuple[int, ...]:
        if not isinstance(node.args[0], fx.Node):
            return writer.emit(name, writer.ref(node.args[1]), cast(float, node.args[0]))
        return plain(writer, node)

    return rule


def _same(writer: ProgramWriter, node: fx.Node) -> int:
    return writer.number(cast(fx.Node, node.args[0]))


def _with_dims(name: str, n_dims: int) -> Rule:
    """An op on a value and whole numbers that stand for axes."""

    def rule(writer: ProgramWriter, node: fx.Node) -> int:
        dims = cast("tuple[int, ...]", node.args[1 : 1 + n_dims])
        return writer.emit(name, writer.ref(node.args[0]), *dims)

    return rule


def _sized(name: str) -> Rule:
    """An op whose result has the shape that tracing found."""

    def rule(writer: ProgramWriter, node: fx.Node) -> int:
        return writer.emit(name, writer.ref(node.args[0]), shape_of(node))

    return rule


def _reduction(name: str) -> Rule:
    def rule(writer: ProgramWriter, node: fx.Node) -> int:
        dims = tuple(cast("Sequence[int]", node.args[1])) if len(node.args) > 1 else None
        keep = bool(node.args[2]) if len(node.args) > 2 else False
        made = writer.emit(name, writer.ref(node.args[0]), dims or None, keep)
        dtype = node.kwargs.get("dtype")
        return made if dtype is None else _cast_to(writer, made, dtype)

    return rule


def _cast_to(writer: ProgramWriter, number: int, dtype: Any) -> int:
    named = wire_dtype(dtype)
    if named is None:
        raise UntraceableError(f"it computes in {dtype}")
    return writer.emit("cast", Ref(number), named.value)


def _to_copy(writer: ProgramWriter, node: fx.Node) -> int:
    dtype = node.kwargs.get("dtype")
    number = _same(writer, node)
    return number if dtype is None else _cast_to(writer, number, dtype)


def _addmm(writer: ProgramWriter, node: fx.Node) -> int:
    if node.kwargs:
        raise UntraceableError("it uses addmm with a factor")
    bias, a, b = (writer.ref(each) for each in node.args)
    return writer.emit("add", Ref(writer.emit("mm", a, b)), bias)


def _cat(writer: ProgramWriter, node: fx.Node) -> int:
    parts = [writer.number(each) for each in cast("Sequence[fx.Node]", node.args[0])]
    dim = cast(int, node.args[1]) if len(node.args) > 1 else 0
    made = parts[0]
    for part in parts[1:]:
        made = writer.emit("cat", Ref(made), Ref(part), dim)
    return made


def _slice(writer: ProgramWriter, node: fx.Node) -> int:
    source = cast(fx.Node, node.args[0])
    dim, start, stop = _slice_arguments(node.args[1:], shape_of(source))
    return writer.emit("slice", writer.ref(source), dim, start, stop)


def _slice_backward(writer: ProgramWriter, node: fx.Node) -> int:
    sizes = cast("tuple[int, ...]", node.args[1])
    dim, start, stop = _slice_arguments(node.args[2:], sizes)
    return writer.emit("pad", writer.ref(node.args[0]), dim, start, sizes[dim] - stop)


def _slice_arguments(args: Sequence[Any], sizes: Sequence[int]) -> tuple[int, int, int]:
    defaults: tuple[Any, ...] = (0, None, None, 1)
    dim, start, stop, step = (*args, *defaults[len(args) :])
    if step != 1:
        raise UntraceableError(f"it takes every {step}th of an axis")
    n = sizes[dim]
    first = 0 if start is None else min(start + n if start < 0 else start, n)
    last = n if stop is None else min(stop + n if stop < 0 else stop, n)
    return dim, first, max(first, last)


def _split(writer: ProgramWriter, node: fx.Node) -> tuple[int, ...]:
    source = cast(fx.Node, node.args[0])
    dim = cast(int, node.args[2]) if len(node.args) > 2 else 0
    sizes = [value.shape[dim] for value in node.meta["val"]]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(
        writer.emit("slice", writer.ref(source), dim, start, start + size)
        for start, size in zip(starts, sizes, strict=True)
    )


def _layer_norm(writer: ProgramWriter, node: fx.Node) -> tuple[int, ...]:
    x, shape, weight, bias, eps = cast("tuple[Any, ...]", node.args)
    affine = [None if each is None else writer.ref(each) for each in (weight, bias)]
    first = writer.emit("layer_norm", writer.ref(x), len(shape), *affine, eps, n_results=3)
    return first, first + 1, first + 2


def _layer_norm_backward(writer: ProgramWriter, node: fx.Node) -> tuple[int, ...]:
    grad, x, shape, mean, rstd, weight, *_ = cast("tuple[Any, ...]", node.args)
    values = [writer.ref(each) for each in (grad, x, mean, rstd)]
    scale = None if weight is None else writer.ref(weight)
    first = writer.emit("layer_norm_backward", *values, len(shape), scale, n_results=3)
    return first, first + 1, first + 2


def _gelu(writer: ProgramWriter, node: fx.Node) -> int:
    kind = cast(str, node.kwargs.get("approximate", "none"))
    return writer.emit(op_name(node), *(writer.ref(each) for each in node.args), kind)


def _softmax(writer: ProgramWriter, node: fx.Node) -> int:
    return writer.emit("softmax", writer.ref(node.args[0]), cast(int, node.args[1]))


def _softmax_backward(writer: ProgramWriter, node: fx.Node) -> int:
    grad, out, dim, *_ = node.args
    return writer.emit("softmax_backward", writer.ref(grad), writer.ref(out), cast(int, dim))


def _full(writer: ProgramWriter, node: fx.Node) -> int:
    return writer.emit("full_like", writer.ref(node.args[0]), cast(float, node.args[1]))


def _masked_fill(writer: ProgramWriter, node: fx.Node) -> int:
    x, mask, value = node.args
    return writer.emit("where", writer.ref(mask), writer.ref_or_number(value), writer.ref(x))


def _where(writer: ProgramWriter, node: fx.Node) -> int:
    condition, a, b = node.args
    return writer.emit(
        "where", writer.ref(condition), writer.ref_or_number(a), writer.ref_or_number(b)
    )


def _attention(writer: ProgramWriter, node: fx.Node) -> tuple[int, ...]:
    *tensors, causal, scale, window = node.args
    refs = [None if each is None else writer.ref(each) for each in tensors]
    # No dropout: seed, and the tile's place that it would depend on, do not matter.
    settings = (bool(causal), cast(float, scale), cast(int, window), 0.0, 0, 0, 0, 1)
    n_results = len(node.meta["val"])
    first = writer.emit(op_name(node), *refs, *settings, n_results=n_results)
    return tuple(range(first, first + n_results))


_RULES: Mapping[str, Rule] = {
    "_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_to_copy": _to_copy,
    "_unsafe_view": _sized("view"),
    "add": _commutative("add"),
    "addmm": _addmm,
    "alias": _same,
    "attention": _attention,
    "attention_backward": _attention,
    "bmm": _elementwise("bmm"),
    "cat": _cat,
    "clone": _same,  # values never change: a copy is as good as what it is of
    "detach": _same,
    "div": _elementwise("div"),
    "empty_like": _same,  # its elements are written before anything reads them
    "exp": _elementwise("exp"),
    "expand": _sized("expand"),
    "fill": _full,
    "full_like": _full,
    "lift_fresh_copy": _same,
    "gelu": _gelu,
    "gelu_backward": _gelu,
    "masked_fill": _masked_fill,
    "mean": _reduction("mean"),
    "mm": _elementwise("mm"),
    "mul": _commutative("mul"),
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "neg": _elementwise("neg"),
    "permute": lambda writer, node: writer.emit(
        "permute", writer.ref(node.args[0]), tuple(cast("Sequence[int]", node.args[1]))
    ),
    "pow": _elementwise("pow"),
    "relu": _elementwise("relu"),
    "rsqrt": _elementwise("rsqrt"),
    "sigmoid": _elementwise("sigmoid"),
    "silu": _elementwise("silu"),
    "slice": _slice,
    "slice_backward": _slice_backward,
    "split": _split,
    "split_with_sizes": _split,
    "squeeze": _with_dims("squeeze", 1),
    "sub": _elementwise("sub"),
    "sum": _reduction("sum"),
    "t": _with_dims("t", 0),
    "tanh": _elementwise("tanh"),
    "tanh_backward": _elementwise("tanh_backward"),
    "transpose": _with_dims("transpose", 2),
    "unsqueeze": _with_dims("unsqueeze", 1),
    "view": _sized("view"),
    "where": _where,
}
