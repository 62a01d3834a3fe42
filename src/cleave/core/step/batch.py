"""What a step is to do: how many tokens, of which types, which weights change."""

from __future__ import annotations

from dataclasses import dataclass

from cleave.core.checks import require_positive
from cleave.core.matrix import DType
from cleave.core.step.model import ModelShape
from cleave.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One optimiser step.

    Attributes:
        tokens: Tokens of the whole step; a whole number of sequences.
        length: Tokens of a sequence.
        wire: Element type that travels and that devices compute with.
        lora_rank: Rank of the adapters if the weights are frozen; 0 trains all weights.
        optimizer_bytes_per_parameter: Host memory of weight, gradient and optimiser, per trained
            parameter: 16 for fp32 AdamW.

    Raises:
        ConfigError: If a value is not above zero, or the tokens are no whole number of sequences.
    """

    tokens: int
    length: int
    wire: DType = DType.BF16
    lora_rank: int = 0
    optimizer_bytes_per_parameter: float = 16.0

    def __post_init__(self) -> None:
        """Refuse what would poison a plan."""
        for name in ("tokens", "length", "optimizer_bytes_per_parameter"):
            require_positive("batch", name, getattr(self, name))
        if self.lora_rank < 0:
            raise ConfigError(f"batch: lora_rank is {self.lora_rank}, expected 0 or more")
        if self.tokens % self.length:
            less = self.tokens // self.length * self.length
            raise ConfigError(
                f"batch: {self.tokens} tokens are no whole number of sequences of {self.length}: "
                f"use {f'{less} or ' if less else ''}{less + self.length} tokens, "
                "or another sequence length"
            )

    @property
    def n_sequences(self) -> int:
        """Sequences of the whole step."""
        return self.tokens // self.length

    @property
    def is_frozen(self) -> bool:
        """Whether the model's own weights stay as they are."""
        return self.lora_rank > 0

    def trained_parameters(self, model: ModelShape) -> int:
        """Parameters that the optimiser changes.

        Raises:
            ConfigError: If the adapters' rank is more than that of a matrix can be.
        """
        if not self.is_frozen:
            return model.parameters
        smallest = min(min(each.k, *each.outs) for each in model.linears)
        if self.lora_rank > smallest:
            raise ConfigError(
                f"batch: lora_rank is {self.lora_rank}, expected at most {smallest}, "
                f"the smallest side of {model.name}'s matrices"
            )
        sides = sum((each.k + out) * each.copies for each in model.linears for out in each.outs)
        return model.n_layers * self.lora_rank * sides
