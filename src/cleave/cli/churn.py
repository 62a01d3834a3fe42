"""What the demo does to its own fleet: kill an agent in mid-step, and let another in."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from cleave import units

if TYPE_CHECKING:
    from cleave.server.local import AgentOptions, LocalAgent, LocalFleet
    from cleave.train.loop import StepRecord


@dataclass(frozen=True, slots=True)
class ChurnCost:
    """What losing a device in a step cost.

    Attributes:
        step: The step, counted from 0.
        n_tasks: Tasks that others had to do again.
        flops: Their operations.
        extra_s: Seconds that the step took beyond the median of all.
    """

    step: int
    n_tasks: int
    flops: float
    extra_s: float

    def __str__(self) -> str:
        """One sentence for people."""
        more = "more" if self.extra_s >= 0 else "less"
        tasks = "1 task" if self.n_tasks == 1 else f"{self.n_tasks} tasks"
        return (
            f"Step {self.step + 1} lost a device with {tasks} "
            f"({units.format_flops(self.flops)}) in hand, which others did again; the step took "
            f"{units.format_seconds(abs(self.extra_s))} {more} than the median."
        )


class Strike:
    """One agent killed after a while, and another started; the clock runs from the start.

    Args:
        fleet: Local agents.
        victim: The agent to kill.
        newcomer: How to start the other.
        delay_s: When.
    """

    def __init__(
        self, fleet: LocalFleet, *, victim: LocalAgent, newcomer: AgentOptions, delay_s: float
    ) -> None:
        self.victim = victim.name
        self._fleet = fleet
        self._agent = victim
        self._newcomer = newcomer
        self._before = fleet.stats()
        self._timer = threading.Timer(delay_s, self._run)
        self._timer.daemon = True
        self._timer.start()

    def cost(self, step: int, records: Sequence[StepRecord]) -> ChurnCost:
        """What it cost, once all steps of the run are done.

        Args:
            step: The step under way when the agent was killed, counted from 0.
            records: Of all steps.
        """
        self._timer.join()
        after = self._fleet.stats()
        usual_s = median(record.seconds for record in records)
        return ChurnCost(
            step,
            after.redone_tasks - self._before.redone_tasks,
            after.redone_flops - self._before.redone_flops,
            records[step].seconds - usual_s,
        )

    def _run(self) -> None:
        self._agent.kill()
        self._fleet.add_agent(self._newcomer)
