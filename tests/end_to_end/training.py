"""A training step that can be watched from outside while it runs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

import torch
from tests.end_to_end.waiting import BOUND_S
from tests.train.parity import Run, assert_parity, train
from torch import nn

from cleave.server.fleet import Fleet
from cleave.train.offload import offload

WIDTH = 1024
ROWS = 512


def wide_model() -> nn.Module:
    """Two layers large enough that a GEMM's parts travel in several pieces."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH // 4))


def wide_batches(n_steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(ROWS, WIDTH, generator=generator) for _ in range(n_steps)]


def mean_square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


class Training:
    """Steps under way in another thread; the same steps on the host say what must come out."""

    def __init__(self, fleet: Fleet, n_steps: int, pool: ThreadPoolExecutor) -> None:
        model, batches = wide_model(), wide_batches(n_steps)
        self._local = train(copy.deepcopy(model), batches, mean_square)
        offload(model, fleet, "devices")
        self._run: Future[Run] = pool.submit(train, model, batches, mean_square)

    @property
    def done(self) -> bool:
        return self._run.done()

    def waits(self, for_s: float) -> None:
        """Wait for the end, but no longer than this."""
        wait([self._run], for_s)

    def must_be_right(self, within_s: float = BOUND_S) -> None:
        """Wait for the end: every step is done, the losses are those of the host."""
        assert_parity(self._run.result(within_s), self._local)


@contextmanager
def training(fleet: Fleet, n_steps: int = 1) -> Iterator[Training]:
    """Training for the time of the block, in which it must end."""
    with ThreadPoolExecutor(1) as pool:
        yield Training(fleet, n_steps, pool)
