"""What the demo does to its own fleet: kill an agent in mid-step, and let another in."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cleave.server.fleet import FleetStats
    from cleave.server.local import LocalFleet
    from cleave.train.loop import StepRecord


@dataclass(frozen=True, slots=True)
class ChurnCost:
    """What losing a device cost."""

    step: int
    n_tasks_redone: int
    flops_redone: float
    extra_s: float

    def __str__(self) -> str:
        """One sentence for people."""
        return (
            f"Step {self.step + 1} lost a device: {self.n_tasks_redone} tasks "
            f"({self.flops_redone / 1e9:.1f} GFLOP) were done again by others, and the step took "
            f"{abs(self.extra_s):.2f} s {'more' if self.extra_s >= 0 else 'less'} than the median."
        )


class Churn:
    """Kills one local agent while a step is under way and starts another.

    Args:
        fleet: Has at least one agent.
        at_step: The step to disturb, counted from 0.
        newcomer: Name of the agent that joins.
    """

    def __init__(self, fleet: LocalFleet, *, at_step: int, newcomer: str) -> None:
        self._fleet = fleet
        self.at_step = at_step
        self.victim = fleet.agents[min(1, len(fleet.agents) - 1)].name
        self._newcomer = newcomer
        self._before: FleetStats | None = None
        self._timer: threading.Timer | None = None

    def arm(self, usual_s: float) -> None:
        """Strike in the middle of the step that begins now, which usually takes ``usual_s``."""
        self._before = self._fleet.stats()
        self._timer = threading.Timer(usual_s / 2, self._strike)
        self._timer.start()

    def cost(self, records: Sequence[StepRecord]) -> ChurnCost:
        """What the disturbed step cost against the median of all steps."""
        assert self._before is not None and self._timer is not None
        self._timer.join()
        after = self._fleet.stats()
        usual_s = median(record.seconds for record in records)
        return ChurnCost(
            self.at_step,
            after.tasks_redone - self._before.tasks_redone,
            after.flops_redone - self._before.flops_redone,
            records[self.at_step].seconds - usual_s,
        )

    def _strike(self) -> None:
        next(agent for agent in self._fleet.agents if agent.name == self.victim).kill()
        self._fleet.add_agent(name=self._newcomer)
