"""What layers cost that run on devices whole, or sliced by features.

A layer is a chain: norm, attention, projection, and norm, MLP. Its activations stay on the device;
what crosses the link is its input and output, in both directions, and its weights and their
gradients once a step. That is bilinear in sequences and layers, as a product is in rows and
columns: so a grid plan is a cut of the rectangle sequences x layers, and of sequences x features
within a layer where that is cut too.
"""

from __future__ import annotations

from dataclasses import dataclass

from cleave.core.matrix import DType
from cleave.core.planning.cost import CostForm
from cleave.core.step.batch import Batch
from cleave.core.step.model import ModelShape

_F32_BYTES = DType.F32.itemsize
_SCORES = 1024  # positions whose scores attention holds at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One layer of a model and batch, in bytes and operations per sequence and per layer.

    Attributes:
        hidden_bytes: Of a sequence between two layers.
        sent_weights_bytes: Of a layer, down and again up as gradients, every step.
        held_weights_bytes: What a layer's weights and gradients take on a device.
        resident_weights_bytes: What a layer's frozen weights take, sent before the first step.
        kept_input_bytes: Of a sequence, from forward to backward, however many layers or slices.
        kept_bytes: Activations of a sequence in a layer, from forward to backward.
        workspace_bytes: Beyond that, of a sequence in a layer while it is computed.
        forward_flops: Of a sequence in a layer.
        backward_flops: Likewise; attention's scores are computed again.
    """

    hidden_bytes: float
    sent_weights_bytes: float
    held_weights_bytes: float
    resident_weights_bytes: float
    kept_input_bytes: float
    kept_bytes: float
    workspace_bytes: float
    forward_flops: float
    backward_flops: float

    @classmethod
    def of(cls, model: ModelShape, batch: Batch) -> Chain:
        """The chain of a layer."""
        itemsize, length = batch.wire.itemsize, batch.length
        weights = float(model.layer_parameters)
        trained = weights
        if batch.is_frozen:
            trained = float(batch.trained_parameters(model)) / model.n_layers
        frozen = weights * itemsize if batch.is_frozen else 0.0
        query, kv = model.n_heads * model.head_dim, model.n_kv_heads * model.head_dim
        inner = model.ffn_hidden * (2 if model.is_gated else 1) * model.experts_per_token
        # Inputs of both norms; q, k, v; attention's output; the inputs of the activation. The
        # log-sum-exp of each query and head is in fp32. Norms and activations are done again.
        kept = itemsize * (2 * model.hidden + query + 2 * kv + query + inner)
        kept += _F32_BYTES * model.n_heads
        scores = 3 * _F32_BYTES * model.n_heads / model.n_kv_heads * min(length, _SCORES)
        linear = model.linear_flops(length) + 2.0 * length * (trained if batch.is_frozen else 0.0)
        attention = model.attention_flops(length, length)
        return cls(
            hidden_bytes=float(itemsize * length * model.hidden),
            sent_weights_bytes=itemsize * trained,
            held_weights_bytes=(itemsize + _F32_BYTES) * trained + frozen,
            resident_weights_bytes=frozen,
            kept_input_bytes=0.0,
            kept_bytes=float(length * kept),
            workspace_bytes=length * (scores + itemsize * (2 * model.hidden + inner)),
            forward_flops=linear + attention,
            backward_flops=linear * (1 if batch.is_frozen else 2) + 2.5 * attention,
        )

    def sliced(self, n_slices: int) -> Chain:
        """The chain of one of as many slices of a layer's features.

        A slice is a KV head with its queries, and as large a share of the MLP. Attention and MLP
        are two chains, each from a whole input to a partial sum of a whole output, which the server
        adds up: twice the activations of a whole layer, in both directions.
        """
        inputs = 2 * self.hidden_bytes
        return Chain(
            hidden_bytes=inputs,
            sent_weights_bytes=self.sent_weights_bytes / n_slices,
            held_weights_bytes=(self.held_weights_bytes + self.workspace_bytes) / n_slices,
            resident_weights_bytes=self.resident_weights_bytes / n_slices,
            kept_input_bytes=inputs,
            kept_bytes=(self.kept_bytes - inputs) / n_slices,
            workspace_bytes=inputs,
            forward_flops=self.forward_flops / n_slices,
            backward_flops=self.backward_flops / n_slices,
        )

    def passes(self, *, keeps: bool) -> tuple[CostForm, CostForm]:
        """Forward and backward pass over sequences x consecutive layers, or slices of one layer.

        Args:
            keeps: Whether activations stay until the backward pass; else the input comes down again
                and the forward pass is done twice.
        """
        hidden, weights = self.hidden_bytes, self.sent_weights_bytes
        memory = (
            self.workspace_bytes,
            self.kept_input_bytes if keeps else 0.0,
            self.held_weights_bytes + (0.0 if keeps else self.kept_bytes),
            self.kept_bytes if keeps else 0.0,
        )
        again = 0.0 if keeps else 1.0
        return (
            CostForm(
                down=(0.0, hidden, weights, 0.0),
                up=(0.0, hidden, 0.0, 0.0),
                flops=self.forward_flops,
                memory=memory,
            ),
            CostForm(
                down=(0.0, hidden * (1 + again), 0.0, 0.0),
                up=(0.0, hidden, weights, 0.0),
                flops=self.backward_flops + self.forward_flops * again,
                memory=memory,
            ),
        )
