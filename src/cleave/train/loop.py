"""A plain training loop over text: it knows nothing of devices."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from cleave.train.text import ByteText


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """What a run depends on; equal settings give equal batches, dropout and learning rates.

    Attributes:
        n_steps: Optimizer steps.
        n_rows: Rows of a batch.
        context: Tokens of a row.
        learning_rate: The highest; it warms up over a tenth of the steps and ends at a tenth.
        weight_decay: Of AdamW, on matrices alone.
        max_grad_norm: Gradients are scaled down to this norm.
        seed: Of batches and dropout.
    """

    n_steps: int
    n_rows: int = 8
    context: int = 128
    learning_rate: float = 5e-4
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    seed: int = 0

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one batch."""
        return self.n_rows * self.context

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        n_warm = max(1, self.n_steps // 10)
        if step < n_warm:
            return self.learning_rate * (step + 1) / n_warm
        done = (step - n_warm) / max(1, self.n_steps - n_warm)
        return self.learning_rate * (0.55 + 0.45 * math.cos(math.pi * done))


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one optimizer step came to."""

    step: int
    loss: float
    seconds: float


class Training:
    """A model, its optimizer and the text it learns.

    Args:
        model: Takes tokens ``(rows, context)`` and gives logits ``(rows, context, vocabulary)``.
        text: What to learn.
        settings: How.
    """

    def __init__(self, model: torch.nn.Module, text: ByteText, settings: TrainingSettings) -> None:
        self.model = model
        self.text = text
        self.settings = settings
        self.optimizer = torch.optim.AdamW(_groups(model, settings.weight_decay), betas=(0.9, 0.95))

    def steps(self) -> Iterator[StepRecord]:
        """Train step by step; each is taken when the next record is asked for."""
        self.model.train()
        for step in range(self.settings.n_steps):
            started_s = time.perf_counter()
            loss = self._step(step)
            yield StepRecord(step, loss, time.perf_counter() - started_s)

    def _step(self, step: int) -> float:
        settings = self.settings
        torch.manual_seed(settings.seed * 1_000_003 + step)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.rate(step)
        tokens, targets = self.text.batch(
            step, n_rows=settings.n_rows, context=settings.context, seed=settings.seed
        )
        logits = self.model(tokens)  # (rows, context, vocabulary)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.max_grad_norm)
        self.optimizer.step()
        return loss.item()


def _groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, object]]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
