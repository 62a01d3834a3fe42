"""A linear layer whose three GEMMs a fleet does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.autograd import forward_ad

from cleave.compute.torch_types import DTYPES, wire_dtype
from cleave.core.matrix import DType, Matrix
from cleave.core.operations import Gemm
from cleave.errors import OffloadError
from cleave.train.gates import Gate, backward_pass, current_pass, gated, will_run
from cleave.train.held import Flight, Held, as_matrix, start
from cleave.train.linear_plan import Axes, LinearPlan, Taken, hints, taken
from cleave.train.registry import State

FLOATS = (DType.F64, DType.F32, DType.BF16, DType.F16)


def linear(
    layer: nn.Module, x: torch.Tensor, state: State, plan: LinearPlan
) -> torch.Tensor | None:
    """The layer's output, None if the layer is to compute it itself.

    Args:
        layer: With a 2-D ``weight`` and perhaps a ``bias``.
        x: ``(..., ins)``.
        state: What the layer is offloaded with.
        plan: How its weight is stored.
    """
    weight = cast(torch.Tensor, layer.weight)
    if not is_plain(x) or not _fits(x, weight, plan):
        return None
    compute = _compute_dtype(x, weight)
    if compute is None:
        state.note(f"a linear layer with {weight.dtype} weights and {x.dtype} input")
        return None
    job = _Job(state, plan, weight, compute, wire_for(state, compute))
    if not state.goes_out(job.shape_only(x).forms()):
        return None
    bias = cast("torch.Tensor | None", layer.bias)
    gate: Gate | None = None
    here = current_pass()
    inside = here if here is not None and here.state is state else None
    if torch.is_grad_enabled() and weight.requires_grad:
        weight, gate = inside.gated(weight) if inside else gated(weight)
    held = (
        inside.activation(x, x.shape[-1], job.wire)
        if inside
        else Held.adopt(state.runtime, as_matrix(x, x.shape[-1], job.wire))
    )
    call = _Call(job, gate, held)
    y: torch.Tensor = _LinearFunction.apply(x, weight, bias, call)  # type: ignore[no-untyped-call]
    return y


def wire_for(state: State, compute: DType) -> DType:
    """The element type that travels for a compute type: the fleet's choice replaces fp32 alone."""
    wire: DType | None = getattr(state.runtime, "wire", None)
    return wire if compute is DType.F32 and wire is not None else compute


def autocast_dtype(tensor: torch.Tensor) -> torch.dtype:
    """The type that autocast gives a tensor where it meets a GEMM; its own without autocast."""
    device = tensor.device.type
    eligible = tensor.is_floating_point() and tensor.dtype is not torch.float64
    if eligible and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return tensor.dtype


def kept(state: State, held: Held) -> Held | None:
    """What to hold of a matrix until backward: itself, or None if what is saved goes through hooks.

    Under checkpointing a layer's input is dropped after forward and made again in backward: to hold
    it would undo that. When it has been made again, the state holds it for the little while.
    """
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if top is None or top(True) is None:
        return held
    if backward_pass() >= 0:
        state.recomputed.keep(held)
    return None


def refuse_double_backward() -> None:
    """Raise if gradients of gradients are asked for.

    Raises:
        OffloadError: In a backward pass with ``create_graph=True``.
    """
    if torch.is_grad_enabled():
        raise OffloadError(
            "create_graph=True: gradients of gradients cannot be offloaded; "
            "call cleave.restore(model) before this backward pass"
        )


@dataclass(frozen=True, slots=True)
class _Job:
    """What a call of a layer computes with."""

    state: State
    plan: LinearPlan
    weight: torch.Tensor
    compute: DType
    wire: DType

    def shape_only(self, x: torch.Tensor) -> Gemm:
        """The forward GEMM over matrices that are not registered."""
        outs, ins = _sizes(self.weight, self.plan)
        n_rows = math.prod(x.shape[:-1])
        stored = (outs, ins) if self.plan.out_in else (ins, outs)
        return self.plan.forward(
            Matrix(0, n_rows, ins, self.wire),
            Matrix(0, *stored, self.wire),
            Matrix(0, n_rows, outs, self.wire),
        )

    def start(
        self, gemm: Gemm, axes: Axes, related: Taken | None, held: tuple[Held, Held, Held]
    ) -> Flight:
        """The GEMM of two held matrices into a third."""
        left, right, out = held
        state = self.state
        matrices = ((left, right), (out,))
        return start(state.runtime, gemm.forms(), hints(axes, related), matrices, state.orphans)


@dataclass(slots=True)
class _Call:
    """One call: what it computes with, the weight's gate if it is trained, the held input."""

    job: _Job
    gate: Gate | None
    x: Held | None

    def forward(self, x: Held) -> tuple[torch.Tensor, Taken | None]:
        """``X @ W`` and how it was laid out."""
        job = self.job
        n_rows = x.matrix.n_rows
        weights = job.state.weights
        weight = weights.held(job.weight, job.wire)
        related = weights.taken(job.weight, job.wire, n_rows)
        outs, _ = _sizes(job.weight, job.plan)
        y = Held.allocate(job.state.runtime, n_rows, outs, job.wire)
        gemm = job.plan.forward(x.matrix, weight.matrix, y.matrix)
        flight = job.start(gemm, job.plan.forward_axes, related, (x, weight, y))
        (result,) = flight.wait()
        layout = taken(job.plan.forward_axes, flight.form, flight.layout)
        if layout is not None:
            weights.remember(job.weight, job.wire, n_rows, layout)
        return result, layout

    def start_input_grad(self, y_grad: Held, related: Taken | None) -> Flight:
        """``dX``, under way."""
        job = self.job
        weight = job.state.weights.held(job.weight, job.wire)
        _, ins = _sizes(job.weight, job.plan)
        x_grad = Held.allocate(job.state.runtime, y_grad.matrix.n_rows, ins, job.wire)
        gemm = job.plan.input_grad(y_grad.matrix, weight.matrix, x_grad.matrix)
        return job.start(gemm, job.plan.input_grad_axes, related, (y_grad, weight, x_grad))

    def start_weight_grad(self, x: Held, y_grad: Held, related: Taken | None) -> Flight:
        """``dW``, under way."""
        job = self.job
        n_rows, n_cols = job.weight.shape
        weight_grad = Held.allocate(job.state.runtime, n_rows, n_cols, job.wire)
        gemm = job.plan.weight_grad(x.matrix, y_grad.matrix, weight_grad.matrix)
        left, right = (y_grad, x) if job.plan.out_in else (x, y_grad)
        return job.start(gemm, job.plan.weight_grad_axes, related, (left, right, weight_grad))


class _LinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, call: _Call
    ) -> torch.Tensor:
        held, call.x = call.x, None
        assert held is not None
        y, ctx.layout = call.forward(held)
        y = y.to(DTYPES[call.job.compute])
        if bias is not None:
            y.add_(bias.detach().to(y))
        ctx.call = call
        ctx.like_x = (x.shape, x.dtype, x.device)
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(
            held.tensor if call.gate is not None else None,
            weight if ctx.needs_input_grad[0] else None,
        )
        ctx.held = kept(call.job.state, held) if call.gate is not None else None
        ctx.set_materialize_grads(False)
        return y.view(*x.shape[:-1], y.shape[1]).to(x.device)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        refuse_double_backward()
        y_grad = grads[0]
        if y_grad is None:
            return None, None, None, None
        call, job = ctx.call, ctx.call.job
        shape, dtype, device = ctx.like_x
        runtime = job.state.runtime
        x, _ = ctx.saved_tensors
        held_grad = Held.adopt(runtime, as_matrix(y_grad, y_grad.shape[-1], job.wire))
        x_flight: Flight | None = None
        if ctx.needs_input_grad[0]:
            x_flight = call.start_input_grad(held_grad, ctx.layout)
        if call.gate is not None and will_run(ctx.next_functions[1][0]):
            held_x = ctx.held or job.state.saved(x)
            flight = call.start_weight_grad(held_x, held_grad, ctx.layout)
            call.gate.add(flight)
            job.state.unread.append(flight)
        # A second backward pass adopts the saved input again: what is kept here outlives the pass.
        ctx.held = None
        bias_grad: torch.Tensor | None = None
        if ctx.needs_input_grad[2]:
            bias_grad = y_grad.reshape(-1, y_grad.shape[-1]).sum(0).to(ctx.bias_dtype)
        if x_flight is None:
            return None, None, bias_grad, None
        (x_grad,) = x_flight.wait()
        return x_grad.view(shape).to(device=device, dtype=dtype), None, bias_grad, None


def _sizes(weight: torch.Tensor, plan: LinearPlan) -> tuple[int, int]:
    """Outputs and inputs of a layer."""
    rows, cols = weight.shape
    return (rows, cols) if plan.out_in else (cols, rows)


def is_plain(x: torch.Tensor) -> bool:
    """Whether ``x`` is an ordinary tensor with elements, outside of transforms and tracing."""
    transformed = (
        torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )
    is_tensor = type(x) in (torch.Tensor, nn.Parameter) and x.layout is torch.strided
    return is_tensor and x.device.type != "meta" and not transformed


def _fits(x: torch.Tensor, weight: torch.Tensor, plan: LinearPlan) -> bool:
    """Whether the product exists and has elements; if not, the layer itself knows what to do."""
    if weight.dim() != 2 or x.dim() == 0:
        return False
    _, ins = _sizes(weight, plan)
    return x.shape[-1] == ins and x.numel() > 0 and weight.numel() > 0


def _compute_dtype(x: torch.Tensor, weight: torch.Tensor) -> DType | None:
    """The type that x and the weight are multiplied in, None if they don't agree on one we have."""
    compute = autocast_dtype(x)
    if autocast_dtype(weight) is not compute:
        return None
    dtype = wire_dtype(compute)
    return dtype if dtype in FLOATS else None
