"""Gates: each weight's gradient enters autograd at one place, when all work has been started.

A gate is an identity on a weight. Layers take its output, start their weight gradients and return
None for it. Gates are made before any layer runs, so the engine comes to them last; each waits for
its weight's gradients and returns their sum in the normal way. Whatever looks at gradients (hooks,
DistributedDataParallel, ``autograd.grad``, accumulation, checkpointing) sees what it always sees.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from cleave.core.matrix import DType
from cleave.train.held import Flight, Held, as_matrix
from cleave.train.registry import State


class Gate:
    """Weight gradients under way for one weight in one pass."""

    __slots__ = ("_flights", "_lock")

    def __init__(self) -> None:
        self._flights: list[tuple[int, Flight]] = []
        self._lock = threading.Lock()

    def add(self, flight: Flight) -> None:
        """A gradient that the present backward pass is to wait for."""
        with self._lock:
            self._flights.append((backward_pass(), flight))

    def take(self) -> list[Flight]:
        """The gradients of the present backward pass; what a failed one left is dropped."""
        with self._lock:
            own = [flight for owner, flight in self._flights if owner == backward_pass()]
            self._flights.clear()
            return own


class _GateFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, gate: Gate) -> torch.Tensor:
        ctx.gate = gate
        ctx.like = (weight.shape, weight.dtype, weight.device)
        ctx.set_materialize_grads(False)
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        shape, dtype, device = ctx.like
        total = grads[0]
        for flight in ctx.gate.take():
            (grad,) = flight.wait()
            grad = grad.view(shape).to(device=device, dtype=dtype)
            total = grad if total is None else total.add(grad)
        return total, None


def gated(weight: torch.Tensor) -> tuple[torch.Tensor, Gate]:
    """A weight behind a new gate, and the gate."""
    gate = Gate()
    return _GateFunction.apply(weight, gate), gate  # type: ignore[no-untyped-call]


def will_run(node: Any) -> bool:
    """Whether the present backward pass comes to this node: not if only others were asked for."""
    return bool(torch._C._will_engine_execute_node(node))


class Pass:
    """One forward pass through an offloaded module, in one thread.

    Args:
        state: What the module is offloaded with.
        root: The module.
        weights: Trainable weights in order of use; each gets its gate now.
    """

    def __init__(self, state: State, root: nn.Module, weights: Iterable[torch.Tensor]) -> None:
        self.state = state
        self.root = root
        self._gates: dict[int, tuple[torch.Tensor, Gate]] = {}
        self._latest: tuple[torch.Tensor, int, Held] | None = None
        for weight in weights:
            if id(weight) not in self._gates:
                self._gates[id(weight)] = gated(weight)

    def gated(self, weight: torch.Tensor) -> tuple[torch.Tensor, Gate]:
        """The weight behind its gate; a weight that the pass does not know gets one of its own."""
        return self._gates.get(id(weight)) or gated(weight)

    def activation(self, x: torch.Tensor, n_cols: int, dtype: DType) -> Held:
        """The layer input as a held matrix; layers in a row that read the same input share it."""
        version = -1 if x.is_inference() else x._version
        if self._latest is not None:
            latest, latest_version, held = self._latest
            same = latest is x and latest_version == version >= 0
            if same and held.matrix.dtype is dtype and held.matrix.n_cols == n_cols:
                return held
        held = Held.adopt(self.state.runtime, as_matrix(x, n_cols, dtype))
        self._latest = (x, version, held)
        return held


class _Here(threading.local):
    current: Pass | None = None


_here = _Here()


def current_pass() -> Pass | None:
    """The pass that this thread is in."""
    return _here.current


@contextmanager
def forward_pass(
    state: State,
    root: nn.Module,
    weights: Iterable[torch.Tensor],
    around: AbstractContextManager[object] | None = None,
) -> Iterator[None]:
    """Run a module's forward in a pass; inside a pass with the same state it is part of that one.

    Args:
        state: What the module is offloaded with.
        root: The module.
        weights: Its weights in order of use; read only if a new pass begins.
        around: A context to be in during a new pass.
    """
    outer = _here.current
    if outer is not None and outer.state is state:
        yield
        return
    state.orphans.wait()
    if backward_pass() < 0:
        state.recomputed.clear()
    state.weights.next_turn()
    trainable = torch.is_grad_enabled()
    with ExitStack() as stack:
        if around is not None:
            stack.enter_context(around)
        _here.current = Pass(state, root, (w for w in weights if trainable and w.requires_grad))
        try:
            yield
        finally:
            _here.current = outer


def backward_pass() -> int:
    """The number of the backward pass that this thread is in, -1 if it is in none."""
    return int(torch._C._current_graph_task_id())
