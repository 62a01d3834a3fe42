"""Small models and their batches: a hand-written GPT, and GPT-2 and Llama of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from cleave.train.gpt import GPT, GPTConfig

VOCABULARY = 37
CONTEXT = 11

Step = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def gpt(dropout: float = 0.0) -> nn.Module:
    return GPT(
        GPTConfig(
            vocabulary=VOCABULARY, context=CONTEXT, width=24, n_layers=2, n_heads=3, dropout=dropout
        )
    )


def gpt2(dropout: float = 0.0) -> nn.Module:
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=24,
        n_layer=2,
        n_head=3,
        attn_pdrop=dropout,
        embd_pdrop=dropout,
        resid_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model.train()


def llama(dropout: float = 0.0) -> nn.Module:
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_dropout=dropout,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model.train()


MODELS = {"gpt": gpt, "gpt2": gpt2, "llama": llama}


def logits_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    out: Any = model(tokens)
    logits: torch.Tensor = getattr(out, "logits", out)
    return logits


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of each next token."""
    logits = logits_of(model, tokens)[:, :-1]
    wanted = tokens[:, 1:]
    return functional.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())


def batches(n_steps: int, n_rows: int = 3) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(n_steps):
        yield torch.randint(0, VOCABULARY, (n_rows, CONTEXT), generator=generator)
