"""What this version can run of a plan; the rest is a forecast."""

from __future__ import annotations

from dataclasses import dataclass

from cleave.core.step.plan import StepPlan

RUN_TODAY = ("block", "ksplit", "mixed")
"""Families that this version runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Today:
    """The quickest plan that this version runs.

    Attributes:
        family: Of that plan.
        step_s: Seconds of a step.
        tokens_per_s: Tokens over seconds.
        run_s: The whole run, if all devices are there all the time.
        is_estimate: Whether it was not planned in full, as the plan taken is so much quicker.
    """

    family: str
    step_s: float
    tokens_per_s: float
    run_s: float
    is_estimate: bool


def quickest_today(plan: StepPlan, tokens: int, n_steps: int) -> Today | None:
    """The plan itself if this version runs it, else the quickest other; None if none fits.

    Args:
        plan: The plan of a step, and those that were not taken.
        tokens: Of a step.
        n_steps: Of the run.
    """
    ways = [(plan.best.step_s, plan.best.family, False)]
    ways += [
        (each.step_s, each.family, each.is_estimate)
        for each in plan.alternatives
        if each.step_s is not None
    ]
    found = min((way for way in ways if way[1] in RUN_TODAY), default=None)
    if found is None:
        return None
    step_s, family, is_estimate = found
    return Today(
        family=family,
        step_s=step_s,
        tokens_per_s=tokens / step_s,
        run_s=n_steps * step_s,
        is_estimate=is_estimate,
    )
