"""What can be set about the scheduler; the defaults are meant for everybody."""

from __future__ import annotations

from dataclasses import dataclass

HOST = 0
"""The device id that stands for the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Settings of a `Scheduler`.

    Attributes:
        host_steps_in: Whether the host computes what no device can; else such work waits.
        strip_s: A tile is cut into strips of at least this long.
        window_s: A device is sent tasks until this many seconds of work are ahead of it.
        min_ahead: Tasks that are sent ahead in any case, so that sending overlaps computing.
        max_ahead: Tasks in flight at most.
        grace_s: Added to every deadline: noise that is no lateness.
        max_attempts: Devices that may fail on a strip before the host does it; where it may not,
            failures in a row of the only devices that can, before the work fails.
        max_refusals: Times that one strip may be refused by a device before another gets it.
        max_failures_in_row: A device is closed after this many.
        rest_s: Pause after a failure; doubles with each in a row.
        max_spread: What a lost device had not returned is cut anew over so many devices at most.
        replan_ratio: Plans are made anew when a rate has moved by this factor,
        replan_s: but not more often than this: rates waver, and plans of equal shapes are kept.
    """

    host_steps_in: bool = True
    strip_s: float = 0.03
    window_s: float = 0.5
    min_ahead: int = 2
    max_ahead: int = 16
    grace_s: float = 1.0
    max_attempts: int = 3
    max_refusals: int = 3
    max_failures_in_row: int = 8
    rest_s: float = 0.5
    max_spread: int = 32
    replan_ratio: float = 1.5
    replan_s: float = 5.0
