"""A layer as two programs: traced once from the user's own module, for any number of sequences.

A layer's forward and backward pass become lists of ops over 2-D blocks whose rows are sequences.
The module is traced with two batch sizes: what differs is said by the number of sequences (an
`Extent`), what does not is constant, and anything else means that sequences are not independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from cleave.compute.torch_types import wire_dtype
from cleave.core.matrix import DType
from cleave.core.program import Program, Ref
from cleave.train import traced_attention
from cleave.train.aten import ProgramWriter, UntraceableError, is_view, shape_of
from cleave.train.traced import BATCHES, TracedLayer, TraceOfBatch, merged

_CACHES = ("past_key_value", "past_key_values", "cache", "layer_past")


def trace_layer(layer: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> TracedLayer:
    """Trace a layer with arguments as those of a call in training.

    Args:
        layer: Its first tensor argument has a first axis of sequences; so have others of that size.
        args: Of the call. Tensors are only looked at for shape, type and whether they need
            gradients.
        kwargs: Likewise; caches are taken to be None.

    Raises:
        UntraceableError: If the layer cannot be said in programs, or is not independent across
            sequences; it says why.
    """
    call = _Call(layer, args, kwargs)
    small, large = (_trace(call, batch) for batch in BATCHES)
    return merged(small, large)


class _Call:
    """A call of a layer as a function of tensors alone."""

    def __init__(self, layer: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self._layer = layer
        plain = {name: None if name in _CACHES else each for name, each in kwargs.items()}
        leaves, self._spec = pytree.tree_flatten((tuple(args), plain))
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._leaves = leaves
        self.tensors = [cast(torch.Tensor, leaves[i]) for i in self._places]
        if not self.tensors or not self.tensors[0].dim():
            raise UntraceableError("it is not called with a tensor")
        state = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
        self._names = list(state)
        self.state = list(state.values())

    def examples(self, batch: int) -> list[torch.Tensor]:
        """Tensors like those of the call, but of so many sequences; then the weights."""
        n_sequences = self.tensors[0].shape[0]
        tensors = []
        for tensor in self.tensors:
            is_batched = tensor.dim() > 0 and tensor.shape[0] == n_sequences
            shape = (batch, *tensor.shape[1:]) if is_batched else tuple(tensor.shape)
            example = torch.zeros(shape, dtype=tensor.dtype)
            tensors.append(example.requires_grad_(tensor.requires_grad))
        state = [
            torch.empty(each.shape, dtype=each.dtype).requires_grad_(each.requires_grad)
            for each in self.state
        ]
        return tensors + state

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The layer's result."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=False):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        state = dict(zip(self._names, tensors[len(self._places) :], strict=True))
        with _Attention():
            result = functional_call(self._layer, state, args, kwargs)
        found = [each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
        if len(found) != 1:
            raise UntraceableError(f"it returns {len(found)} tensors")
        return (found[0],)


class _Attention(TorchFunctionMode):
    """Has `scaled_dot_product_attention` traced as one op."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return traced_attention.scaled_dot_product_attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _trace(call: _Call, batch: int) -> TraceOfBatch:
    examples = call.examples(batch)
    forward, backward = _graphs(call, examples)
    constants = {
        node.target: getattr(graph, cast(str, node.target))
        for graph in (forward, backward)
        for node in graph.graph.nodes
        if node.op == "get_attr"
    }
    inputs = [*examples, *constants.values()]
    numbers = {name: len(examples) + i for i, name in enumerate(constants)}
    ahead = _Pass(forward, [_described(each) for each in inputs], numbers)
    outputs = _outputs(forward)
    result, *kept = outputs
    if not isinstance(result, fx.Node):
        raise UntraceableError("its result is not a tensor")
    again = {node.name: node for node in kept if isinstance(node, fx.Node) and ahead.is_cheap(node)}
    saved = [node for node in kept if isinstance(node, fx.Node) and node.name not in again]
    programs = _Backward(backward, ahead, again, saved, _described_node(result))
    return TraceOfBatch(
        batch=batch,
        forward=ahead.program([result, *saved]),
        backward=programs.program,
        inputs=tuple(ahead.inputs),
        result=_described_node(result),
        saved=tuple(_described_node(node) for node in saved),
        reads=programs.reads,
        grads=programs.grads,
        constants=tuple(constants.values()),
    )


def _graphs(call: _Call, examples: list[torch.Tensor]) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward pass by AOTAutograd, which is not a public interface of torch."""
    try:
        from torch._functorch.aot_autograd import aot_export_joint_simple
        from torch._functorch.partitioners import min_cut_rematerialization_partition
    except ImportError as error:
        raise UntraceableError(f"this torch cannot trace: {error}") from error
    try:
        with torch.enable_grad():
            joint = aot_export_joint_simple(call, tuple(examples), trace_joint=True)
            forward, backward = min_cut_rematerialization_partition(
                cast(fx.GraphModule, joint), tuple(examples), num_fwd_outputs=1
            )
    except UntraceableError:
        raise
    except Exception as error:  # whatever is wrong with it, the layer runs in another way
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UntraceableError(f"torch cannot trace it: {first_line}") from error
    return forward, backward


class _Pass:
    """A graph and the numbers of its inputs."""

    def __init__(
        self,
        graph: fx.GraphModule,
        inputs: list[tuple[tuple[int, ...], DType]],
        constants: dict[Any, int],
    ) -> None:
        self._graph = graph
        self.inputs = inputs
        self.constants = constants
        self.places = {node.name: i for i, node in enumerate(_placeholders(graph))}

    def is_cheap(self, node: fx.Node) -> bool:
        """Whether a node is an input, or only looks at one: it need not be saved."""
        while is_view(node):
            node = cast(fx.Node, node.args[0])
        return node.op != "call_function"

    def number_of(self, node: fx.Node) -> int:
        """The input that an input node stands for."""
        if node.op == "get_attr":
            return self.constants[node.target]
        return self.places[node.name]

    def sources(self, node: fx.Node) -> list[fx.Node]:
        """A cheap node and what it looks at, the input first."""
        chain = [node]
        while is_view(chain[-1]):
            chain.append(cast(fx.Node, chain[-1].args[0]))
        return chain[::-1]

    def program(self, outputs: list[fx.Node]) -> Program:
        """The forward pass; blocks in, blocks out."""
        writer = ProgramWriter(len(self.inputs))
        views: dict[int, int] = {}
        for node in self._graph.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                number = self.number_of(node)
                if number not in views:
                    views[number] = _opened(writer, number, self.inputs[number][0])
                writer.put(node, views[number])
            elif node.op == "call_function" and not _is_check(node):
                writer.write(node)
        return writer.program([_closed(writer, writer.number(node)) for node in outputs])


class _Backward:
    """The backward pass: which inputs it reads, what it gives, and its program.

    Args:
        graph: Of the backward pass.
        ahead: The forward pass.
        again: Nodes of the forward pass, by name, that are made again from its inputs.
        saved: Nodes of it that are saved.
        result: Shape and type of its result.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        ahead: _Pass,
        again: dict[str, fx.Node],
        saved: list[fx.Node],
        result: tuple[tuple[int, ...], DType],
    ) -> None:
        placeholders = _placeholders(graph)
        chains = {
            node.name: ahead.sources(again[node.name])
            for node in placeholders
            if node.name in again
        }
        attributes = [node for node in graph.graph.nodes if node.op == "get_attr"]
        read = {ahead.number_of(chain[0]) for chain in chains.values()}
        read |= {ahead.constants[node.target] for node in attributes}
        self.reads = tuple(sorted(read))
        places = {number: 1 + i for i, number in enumerate(self.reads)}
        first_saved = 1 + len(self.reads)
        writer = ProgramWriter(first_saved + len(saved))
        opened = {
            number: _opened(writer, place, ahead.inputs[number][0])
            for number, place in places.items()
        }
        saved_places = {node.name: first_saved + i for i, node in enumerate(saved)}
        for node in placeholders:
            if node.name in chains:
                source, *views = chains[node.name]
                writer.put(source, opened[ahead.number_of(source)])
                for view in views:
                    writer.write(view)
                writer.put(node, writer.number(chains[node.name][-1]))
            elif node.name in saved_places:
                place = saved_places[node.name]
                writer.put(node, _opened(writer, place, shape_of(node)))
            else:
                writer.put(node, _opened(writer, 0, result[0]))
        for node in graph.graph.nodes:
            if node.op == "get_attr":
                writer.put(node, opened[ahead.constants[node.target]])
            elif node.op == "call_function" and not _is_check(node):
                writer.write(node)
        grads = _outputs(graph)
        self.grads = tuple(i for i, node in enumerate(grads) if node is not None)
        outputs = [
            _closed(writer, writer.number(cast(fx.Node, grads[i])), ahead.inputs[i][0])
            for i in self.grads
        ]
        self.program = writer.program(outputs)


def _placeholders(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def _outputs(graph: fx.GraphModule) -> list[Any]:
    return list(cast("Sequence[Any]", next(iter(graph.graph.find_nodes(op="output"))).args[0]))


def _is_check(node: fx.Node) -> bool:
    return "_assert" in str(node.target)


def _described(tensor: torch.Tensor) -> tuple[tuple[int, ...], DType]:
    dtype = wire_dtype(tensor.dtype)
    if dtype is None:
        raise UntraceableError(f"it takes {tensor.dtype}")
    return tuple(tensor.shape), dtype


def _described_node(node: fx.Node) -> tuple[tuple[int, ...], DType]:
    return _described(node.meta["val"])


def _opened(writer: ProgramWriter, number: int, shape: tuple[int, ...]) -> int:
    """A block in the shape that the graph knows it in."""
    return writer.emit("view", Ref(number), shape)


def _closed(writer: ProgramWriter, number: int, shape: tuple[int, ...] | None = None) -> int:
    """A value as a block: rows are sequences, or the first axis of a weight."""
    rows = -2 if shape is None else (1 if len(shape) < 2 else shape[0])
    return writer.emit("view", Ref(number), (rows, -1))
