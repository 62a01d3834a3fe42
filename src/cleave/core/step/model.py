"""The shape of a transformer: its linear layers, parameters and operations."""

from __future__ import annotations

from dataclasses import dataclass

from cleave.core.checks import require_positive
from cleave.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Linear:
    """One or more linear layers of the same input, seen as one GEMM: ``(tokens, k) @ (k, n)``.

    Attributes:
        name: For people: ``"qkv"``, ``"out"``, ``"up"``, ``"down"``, ``"head"``.
        k: Features in.
        outs: Features out of each of them.
        copies: How many of these a layer has side by side, each with its share of the tokens
            (experts); 1 for a dense layer.
        share: Of the batch's tokens that each copy sees.
    """

    name: str
    k: int
    outs: tuple[int, ...]
    copies: int = 1
    share: float = 1.0

    @property
    def n(self) -> int:
        """Features out, of all of them together."""
        return sum(self.outs)

    @property
    def parameters(self) -> int:
        """Weights of all copies."""
        return self.k * self.n * self.copies


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A transformer by its sizes; each layer is attention and an MLP.

    Attributes:
        name: For people.
        n_layers: Layers.
        hidden: Features between layers.
        ffn_hidden: Features inside the MLP.
        n_heads: Query heads.
        n_kv_heads: Heads of keys and values.
        head_dim: Features of a head.
        vocab: Entries of the vocabulary; 0 without an output head.
        is_gated: Whether the MLP has a gate beside its up projection (SwiGLU).
        is_tied: Whether the output head is the embedding.
        is_causal: Whether a position sees earlier ones alone.
        is_qkv_fused: Whether queries, keys and values are published as one layer.
        is_gate_fused: Whether gate and up projection are.
        default_length: Tokens of a sequence where nothing else is asked for.
        max_length: Of the longest sequence that it takes; None if that is not known.
        n_experts: Experts per layer; 1 for a dense model.
        experts_per_token: Experts that a token goes through.

    Raises:
        ConfigError: If a size is not above zero, or heads do not share keys and values evenly; it
            names the field.
    """

    name: str
    n_layers: int
    hidden: int
    ffn_hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab: int
    is_gated: bool
    is_tied: bool = False
    is_causal: bool = True
    is_qkv_fused: bool = False
    is_gate_fused: bool = False
    default_length: int = 2048
    max_length: int | None = None
    n_experts: int = 1
    experts_per_token: int = 1

    def __post_init__(self) -> None:
        """Refuse what would poison a plan."""
        for field in (
            "n_layers", "hidden", "ffn_hidden", "n_heads", "n_kv_heads", "head_dim",
            "default_length", "n_experts", "experts_per_token",
        ):  # fmt: skip
            require_positive(f"model {self.name}", field, getattr(self, field))
        require_positive(f"model {self.name}", "vocab + 1", self.vocab + 1)
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"model {self.name}: n_kv_heads is {self.n_kv_heads}, "
                f"expected a number that divides n_heads, {self.n_heads}"
            )

    @property
    def attention_linears(self) -> tuple[Linear, ...]:
        """Queries, keys and values; the projection of the output."""
        query, kv = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        outs = (query, kv, kv)
        return (
            Linear("qkv", self.hidden, (sum(outs),) if self.is_qkv_fused else outs),
            Linear("out", query, (self.hidden,)),
        )

    @property
    def mlp_linears(self) -> tuple[Linear, ...]:
        """Up (with the gate, where there is one) and down; once per expert."""
        copies, share = self.n_experts, self.experts_per_token / self.n_experts
        outs = (self.ffn_hidden,) * (2 if self.is_gated else 1)
        return (
            Linear("up", self.hidden, (sum(outs),) if self.is_gate_fused else outs, copies, share),
            Linear("down", self.ffn_hidden, (self.hidden,), copies, share),
        )

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Those of one layer, in order of use."""
        return self.attention_linears + self.mlp_linears

    @property
    def head(self) -> Linear | None:
        """The output head, if there is one."""
        return Linear("head", self.hidden, (self.vocab,)) if self.vocab else None

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's linear layers (norms and biases are not counted)."""
        return sum(linear.parameters for linear in self.linears)

    @property
    def parameters(self) -> int:
        """Weights of all linear layers, the embedding, and the head if it has its own."""
        head = 0 if self.is_tied else self.vocab * self.hidden
        return self.n_layers * self.layer_parameters + self.vocab * self.hidden + head

    def linear_flops(self, tokens: float) -> float:
        """Operations of one layer's linear layers in the forward pass (a multiply-add is 2)."""
        return sum(2.0 * each.k * each.n * each.copies * each.share for each in self.linears) * (
            tokens
        )

    def attention_flops(self, tokens: float, length: int) -> float:
        """Operations of one layer's attention in the forward pass; masked pairs are counted."""
        return 4.0 * tokens * length * self.n_heads * self.head_dim

    def step_flops(self, tokens: float, length: int, *, trains: bool = True) -> float:
        """Operations of a whole step, forward and backward: 3 times the forward pass.

        Recomputation, which fused attention does in its backward pass, is not counted.

        Args:
            tokens: Of the step.
            length: Of a sequence.
            trains: Whether the weights' gradients are computed; without them the linear layers'
                products are 2 times those of the forward pass, adapters not counted.
        """
        head = 2.0 * self.hidden * self.vocab * tokens
        linear = self.n_layers * self.linear_flops(tokens) + head
        attention = self.n_layers * self.attention_flops(tokens, length)
        return (3.0 if trains else 2.0) * linear + 3.0 * attention
