"""A plain GPT that knows nothing of Cleave: for the demo, examples and tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """Shape of a model; the defaults have some 10 million parameters.

    Attributes:
        vocabulary: Distinct tokens; 256 for bytes.
        context: Most tokens that it can look back on.
        width: Features of a token.
        n_layers: Transformer layers.
        n_heads: Attention heads; a divisor of ``width``.
        dropout: Probability that a feature or an attention weight is dropped.
    """

    vocabulary: int = 256
    context: int = 256
    width: int = 384
    n_layers: int = 6
    n_heads: int = 6
    dropout: float = 0.1


class SelfAttention(nn.Module):
    """Each token looks at itself and at those before it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the tokens have seen, ``(B, T, C)`` like ``x``."""
        heads = self.qkv(x).unflatten(2, (3, self.n_heads, -1))  # (B, T, 3, H, D)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        dropout = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        out: torch.Tensor = self.out(seen.transpose(1, 2).flatten(2))  # (B, T, C)
        return out


class Layer(nn.Module):
    """Attention, then a wide layer for each token by itself; both add to what they read."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = SelfAttention(config)
        self.wide_norm = nn.LayerNorm(config.width)
        self.wide = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The tokens one layer on, ``(B, T, C)`` like ``x``."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        wide: torch.Tensor = self.dropout(self.wide(self.wide_norm(x)))
        return x + wide


class GPT(nn.Module):
    """Predicts each next token; the output head shares its weight with the token embedding."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.places = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                # What adds to the residual stream starts smaller, since each layer adds twice.
                adds = name.endswith(("attention.out.weight", "wide.2.weight"))
                shrink = (2 * config.n_layers) ** -0.5 if adds else 1.0
                nn.init.normal_(parameter, std=0.02 * shrink)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each next token, ``(B, T, vocabulary)`` for tokens ``(B, T)``."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.places(places))  # (B, T, C)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(self.norm(x))  # (B, T, vocabulary)
        return logits

    @torch.no_grad()
    def generate(self, tokens: torch.Tensor, n_new: int, temperature: float = 0.8) -> torch.Tensor:
        """``tokens`` ``(B, T)`` with ``n_new`` more, drawn one after another.

        Args:
            tokens: The beginning, at least one token.
            n_new: How many to add.
            temperature: Lower is more likely and less varied; 0 always takes the likeliest.
        """
        was_training = self.training
        self.eval()
        for _ in range(n_new):
            logits = self(tokens[:, -self.config.context :])[:, -1]  # (B, vocabulary)
            if temperature > 0:
                chances = functional.softmax(logits / temperature, dim=-1)
                following = torch.multinomial(chances, 1)  # (B, 1)
            else:
                following = logits.argmax(-1, keepdim=True)
            tokens = torch.cat((tokens, following), 1)
        self.train(was_training)
        return tokens
