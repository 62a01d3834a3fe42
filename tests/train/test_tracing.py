"""Layers of real models as programs: the same results and gradients, for any part of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from cleave.compute.numpy_backend import NumpyBackend
from cleave.compute.torch_backend import TorchBackend
from cleave.core.matrix import DType, Region
from cleave.core.program import Program
from cleave.train.aten import UntraceableError
from cleave.train.traced import TracedLayer
from cleave.train.tracing import trace_layer

SEQUENCES, TOKENS, HIDDEN = 5, 12, 32


def hidden() -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(SEQUENCES, TOKENS, HIDDEN, requires_grad=True)


def llama() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
    )
    model = LlamaModel(config)
    position = model.rotary_emb(hidden(), torch.arange(TOKENS)[None])
    return model.layers[0], {"position_embeddings": position, "attention_mask": None}


def gpt2() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        n_embd=HIDDEN, n_layer=1, n_head=4, vocab_size=64, bos_token_id=1, eos_token_id=1,
        resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip
    return GPT2Model(config).h[0], {"attention_mask": None}


def bert() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=HIDDEN, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48,
        vocab_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertModel(config).encoder.layer[0], {"attention_mask": None}


class HandWritten(nn.Module):
    """Attention by hand with a mask in a buffer, and a constant in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.up = nn.Linear(HIDDEN, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(2 * HIDDEN, HIDDEN)
        self.register_buffer("hides", torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).split(HIDDEN, dim=-1)
        scores = (q @ k.transpose(-2, -1)) / HIDDEN**0.5
        x = x + scores.masked_fill(self.hides, float("-inf")).softmax(-1) @ v
        result: torch.Tensor = x + self.down(torch.tanh(self.up(x)) * torch.tensor([2.0]))
        return result


def hand_written() -> tuple[nn.Module, dict[str, Any]]:
    return HandWritten(), {}


LAYERS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "llama": llama,
    "gpt2": gpt2,
    "bert": bert,
    "hand-written": hand_written,
}
BACKENDS = {"torch": TorchBackend("cpu"), "numpy": NumpyBackend()}


def as_block(tensor: torch.Tensor, is_batched: bool) -> torch.Tensor:
    plain = tensor.detach()
    if is_batched or plain.dim() > 2:
        return plain.reshape(plain.shape[0], -1)
    return plain.reshape(1, -1) if plain.dim() < 2 else plain


def run(backend: Any, program: Program, n_sequences: int, blocks: Sequence[Any]) -> list[Any]:
    return list(backend.run(program.bind(Region(0, n_sequences, 0, 1)), blocks))


def put(backend: Any, tensor: torch.Tensor) -> Any:
    n_rows, n_cols = tensor.shape
    dtype = DType.BOOL if tensor.dtype is torch.bool else DType.F32
    array = backend.empty(n_rows, n_cols, dtype)
    payload = tensor.contiguous().view(torch.uint8).numpy().data.cast("B")
    backend.write(array, Region(0, n_rows, 0, n_cols), payload)
    return array


def passes(
    traced: TracedLayer, backend: Any, tensors: Sequence[torch.Tensor], grad: torch.Tensor
) -> list[torch.Tensor]:
    """Result and gradients, as blocks."""
    blocks = [
        put(backend, as_block(tensor, block.is_batched))
        for tensor, block in zip([*tensors, *traced.constants], traced.inputs, strict=True)
    ]
    n = grad.shape[0]
    result, *saved = run(backend, traced.forward, n, blocks)
    read = [blocks[i] for i in traced.reads]
    d_result = put(backend, as_block(grad, is_batched=True))
    grads = run(backend, traced.backward, n, [d_result, *read, *saved])
    return [torch.as_tensor(each) for each in (result, *grads)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", LAYERS)
def test_parts_of_a_batch_give_what_the_layer_gives(name: str, backend: str) -> None:
    torch.manual_seed(1)
    layer, kwargs = LAYERS[name]()
    x = hidden()
    traced = trace_layer(layer, (x,), kwargs)
    out = layer(x, **kwargs)
    out = out if isinstance(out, torch.Tensor) else out[0]
    d_out = torch.randn_like(out)
    extras = [t for each in kwargs.values() if each is not None for t in each]
    state = [*layer.parameters(), *layer.buffers()]
    tensors = [x, *extras, *state]
    wanted = torch.autograd.grad(out, [tensors[i] for i in traced.grads], d_out)
    parts = [
        passes(traced, BACKENDS[backend], [x[rows], *extras, *state], d_out[rows])
        for rows in (slice(0, 1), slice(1, 5))
    ]
    result = torch.cat([part[0] for part in parts])
    torch.testing.assert_close(result, as_block(out, is_batched=True), rtol=1e-5, atol=1e-5)
    assert traced.grads[0] == 0
    assert len(traced.grads) == 1 + len(list(layer.parameters()))
    for place, (i, exact) in enumerate(zip(traced.grads, wanted, strict=True), 1):
        is_batched = traced.inputs[i].is_batched
        got = [part[place] for part in parts]
        total = torch.cat(got) if is_batched else got[0] + got[1]
        torch.testing.assert_close(total, as_block(exact, is_batched), rtol=1e-4, atol=1e-5)


def test_what_backward_can_see_in_the_inputs_is_not_saved() -> None:
    layer, kwargs = llama()
    traced = trace_layer(layer, (hidden(),), kwargs)
    weights = {tuple(each.shape) for each in layer.parameters()}
    assert not any(tuple(block.shape) in weights for block in traced.saved)
    assert all(block.is_batched for block in traced.saved)


class Flattened(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x[:1].sum() * x.shape[0] ** 2


class Sorted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sort(-1).values


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Flattened(), "independent"),
        (Sorted(), "programs do not have"),
        (Branching(), "trace"),
        (nn.MultiheadAttention(HIDDEN, 4, batch_first=True), "called|returns|trace"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_programs_cannot_say_is_refused_with_the_reason(layer: nn.Module, reason: str) -> None:
    with pytest.raises(UntraceableError, match=reason):
        trace_layer(layer, (hidden(),), {})
