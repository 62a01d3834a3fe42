"""What a step asks of the host: memory, and the seconds in which devices wait for it.

The host does norms, residual sums, activations and the optimiser. All of it is bound by memory:
counts below are elements read and written once each, as fused kernels do; a framework that runs
each of them in several passes takes a multiple.
"""

from __future__ import annotations

from dataclasses import dataclass

from cleave.core.fleet import Server
from cleave.core.matrix import DType
from cleave.core.step.batch import Batch
from cleave.core.step.model import ModelShape
from cleave.core.step.plan import HostNeeds
from cleave.errors import PlanError
from cleave.units import format_bytes

_F32_BYTES = DType.F32.itemsize
_OPTIMIZER_ELEMENTS = 7
"""AdamW per parameter: weight, gradient and both moments read, weight and both moments written."""


@dataclass(frozen=True, slots=True)
class _Elements:
    """Elements per token and layer that the host reads or writes, or keeps."""

    forward: float
    backward: float
    kept: float

    @classmethod
    def of(cls, model: ModelShape) -> _Elements:
        """Of a layer whose products and attention alone are on devices."""
        h = float(model.hidden)
        heads = (model.n_heads + 2 * model.n_kv_heads) * model.head_dim
        ffn = model.ffn_hidden * model.experts_per_token
        inner = ffn * (2 if model.is_gated else 1)
        # Two norms (read, write), two residual sums (two read, one written), rotary positions of
        # queries and keys (read, write), the activation (its inputs read, its output written).
        forward = 4 * h + 6 * h + 2 * heads + inner + ffn
        # Norms read input and gradient and write one; sums likewise; the activation reads its
        # inputs and its output's gradient and writes the gradients of its inputs.
        backward = 6 * h + 6 * h + 2 * heads + 2 * inner + ffn
        # Inputs of both norms and their outputs, q k v, attention's output, the activation's
        # inputs and output.
        kept = 4 * h + heads + model.n_heads * model.head_dim + inner + ffn
        return cls(forward, backward, kept)


def host_needs(
    model: ModelShape, batch: Batch, server: Server, *, recomputes: bool, layers_away: bool
) -> HostNeeds:
    """What a step asks of the host.

    Args:
        model: Its sizes.
        batch: Tokens, types, which weights change.
        server: Memory bandwidth and arithmetic; what is infinite costs no time.
        recomputes: Whether the host keeps layer inputs alone, and does the rest of a layer's
            forward pass again in its backward pass.
        layers_away: Whether whole layers run on devices: the host then has their inputs alone.
    """
    trained = float(batch.trained_parameters(model))
    per_token = _Elements.of(model)
    itemsize = batch.wire.itemsize
    inputs = float(batch.tokens * model.n_layers * model.hidden * itemsize)
    layer = batch.tokens * per_token.kept * itemsize
    if layers_away:
        activations, traffic = inputs, 2 * inputs
    else:
        activations = inputs + layer if recomputes else layer * model.n_layers
        passes = per_token.forward * (2 if recomputes else 1) + per_token.backward
        traffic = batch.tokens * model.n_layers * passes * itemsize
    frozen = float(model.parameters) * itemsize if batch.is_frozen else 0.0
    copy = trained * itemsize if itemsize < _F32_BYTES and not batch.is_frozen else 0.0
    optimizer_traffic = trained * _OPTIMIZER_ELEMENTS * _F32_BYTES
    flops = 0.0
    if batch.is_frozen:  # the adapters' products are too thin to send
        flops = 6.0 * batch.tokens * trained
    total = traffic + optimizer_traffic
    return HostNeeds(
        weights_bytes=trained * _F32_BYTES + copy + frozen,
        gradients_bytes=trained * _F32_BYTES,
        optimizer_bytes=trained * max(0.0, batch.optimizer_bytes_per_parameter - 2 * _F32_BYTES),
        activation_bytes=activations,
        is_recomputing=recomputes,
        memory_traffic_bytes=total,
        seconds=total / server.memory_bytes_per_s + flops / server.flops_per_s,
    )


def require_room(needs: HostNeeds, batch: Batch, server: Server) -> None:
    """Raise PlanError with a remedy if the step does not fit the host's memory."""
    if needs.memory_bytes <= server.memory_bytes:
        return
    remedies = ["use a host with more memory (--server-memory)"]
    state = needs.weights_bytes + needs.gradients_bytes + needs.optimizer_bytes
    room = server.memory_bytes - state
    if not batch.is_frozen:
        remedies.append("train LoRA adapters alone (--lora)")
    if room > 0:
        tokens = int(batch.tokens * room / needs.activation_bytes / batch.length) * batch.length
        if tokens:
            remedies.append(f"use at most {tokens} tokens a step (--tokens)")
    raise PlanError(
        f"the host lends {format_bytes(server.memory_bytes)} of memory but needs "
        f"{format_bytes(needs.memory_bytes)}: {format_bytes(needs.weights_bytes)} for weights, "
        f"{format_bytes(needs.gradients_bytes)} for gradients, "
        f"{format_bytes(needs.optimizer_bytes)} for the optimiser, "
        f"{format_bytes(needs.activation_bytes)} for activations; " + ", or ".join(remedies)
    )
