"""What "the same as on one machine" means: DESIGN 5, as assertions.

Gradients are compared per tensor and by norm: some are zero in theory (of key biases), where an
element for element comparison fails on correct code.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

Step = Callable[[nn.Module, torch.Tensor], torch.Tensor]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]

LOSS_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-4
NARROW_FACTOR = 1.5


@dataclass(frozen=True)
class Run:
    """The losses of all steps, and the gradients of the first: from equal weights."""

    losses: list[float]
    gradients: dict[str, torch.Tensor]


def train(
    model: nn.Module,
    batches: Sequence[torch.Tensor],
    step: Step,
    make_optimizer: MakeOptimizer | None = None,
    autocast: torch.dtype | None = None,
) -> Run:
    """A short run of ``model``, which it changes."""
    optimizer = (make_optimizer or adamw)(model)
    losses: list[float] = []
    gradients: dict[str, torch.Tensor] = {}
    for batch in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            loss = step(model, batch)
        loss.backward()
        losses.append(loss.item())
        gradients = gradients or gradients_of(model)
        optimizer.step()
    return Run(losses, gradients)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def fused_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def gradients_of(model: nn.Module) -> dict[str, torch.Tensor]:
    named = model.named_parameters()
    return {name: p.grad.double().clone() for name, p in named if p.grad is not None}


def assert_parity(run: Run, local: Run) -> None:
    """Losses within 1e-4 relative, gradients within 1e-4 of their norm."""
    assert len(run.losses) == len(local.losses)
    for loss, expected in zip(run.losses, local.losses, strict=True):
        assert abs(loss - expected) <= LOSS_TOLERANCE * abs(expected), (run.losses, local.losses)
    assert_gradients(run.gradients, local.gradients)


def assert_gradients(gradients: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert gradients.keys() == expected.keys()
    largest = max(gradient.norm().item() for gradient in expected.values())
    for name, gradient in gradients.items():
        error = (gradient - expected[name]).norm().item()
        bound = GRADIENT_TOLERANCE * max(expected[name].norm().item(), 1e-4 * largest)
        assert error <= bound, f"{name}: off by {error:.3g}, allowed {bound:.3g}"


def assert_narrow_parity(
    model: nn.Module, offloaded: nn.Module, batches: Sequence[torch.Tensor], step: Step
) -> None:
    """Under bf16 autocast ``offloaded`` is as near to an fp64 run as the local ``model`` is, x 1.5.

    Args:
        model: On the host; `offloaded` has equal weights.
        offloaded: The same, done by a fleet.
        batches: One batch per step.
        step: Gives the loss.
    """
    exact = train(copy.deepcopy(model).double(), batches, step)
    local = train(model, batches, step, autocast=torch.bfloat16)
    run = train(offloaded, batches, step, autocast=torch.bfloat16)
    assert _error(run, exact) <= NARROW_FACTOR * _error(local, exact)
    worst_loss = max(_loss_errors(local, exact))
    # The loss of one batch can be right by chance: 1e-3 is one unit of bf16 over a few tokens.
    assert max(_loss_errors(run, exact)) <= max(NARROW_FACTOR * worst_loss, 1e-3)


def _error(run: Run, exact: Run) -> float:
    """The distance of all gradients taken together, relative."""
    off = sum((run.gradients[n] - g).square().sum() for n, g in exact.gradients.items())
    whole = sum(g.square().sum() for g in exact.gradients.values())
    return float(torch.as_tensor(off / whole).sqrt())


def _loss_errors(run: Run, exact: Run) -> list[float]:
    pairs = zip(run.losses, exact.losses, strict=True)
    return [abs(loss - expected) / abs(expected) for loss, expected in pairs]
