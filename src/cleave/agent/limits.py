"""The owner comes first: when an agent pauses, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

PAUSE_POLL_S = 1.0
RESUME_AFTER_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What the sensors say.

    Attributes:
        on_battery: Whether the machine runs on its battery; False if it has none.
        battery_percent: Its charge, None if it has none.
        asked: How the owner asked for a pause, None if not.
    """

    on_battery: bool = False
    battery_percent: float | None = None
    asked: str | None = None


class Sensors(Protocol):
    """Reads the machine's state; replaced by a fake in tests."""

    def read(self) -> Readings:
        """The state now."""
        ...


class MachineSensors:
    """The battery, a signal, and a file that the owner may create.

    Attributes:
        asked_by_signal: Set by whoever handles the signals.
    """

    def __init__(self, pause_file: Path | None = None) -> None:
        self._pause_file = pause_file
        self.asked_by_signal = False

    def read(self) -> Readings:
        """The state now."""
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        asked: str | None = None
        if self.asked_by_signal:
            asked = "a signal"
        elif self._pause_file is not None and self._pause_file.exists():
            asked = f"the file {self._pause_file}"
        if battery is None:
            return Readings(asked=asked)
        return Readings(
            on_battery=battery.power_plugged is False, battery_percent=battery.percent, asked=asked
        )


def pause_reason(readings: Readings, *, may_use_battery: bool = False) -> str | None:
    """Why nothing should be computed now, with the value read; None if all is well."""
    if readings.asked is not None:
        return f"asked by the owner with {readings.asked}"
    if readings.on_battery and not may_use_battery:
        charge = readings.battery_percent
        return "on battery" if charge is None else f"on battery, {charge:.0f} %"
    return None


class Governor:
    """Pauses at once, resumes after the state has been good for a while: no flapping.

    Args:
        resume_after_s: How long it must have been good.
    """

    def __init__(self, resume_after_s: float = RESUME_AFTER_S) -> None:
        self._resume_after_s = resume_after_s
        self._reason: str | None = None
        self._good_since_s: float | None = None

    def update(self, reason: str | None, now_s: float) -> str | None:
        """Why the agent is paused from now on, None if it is not.

        Args:
            reason: Of `pause_reason` now.
            now_s: Monotonic time.
        """
        if reason is not None:
            self._reason = reason
            self._good_since_s = None
        elif self._reason is not None:
            if self._good_since_s is None:
                self._good_since_s = now_s
            if now_s - self._good_since_s >= self._resume_after_s:
                self._reason = None
                self._good_since_s = None
        return self._reason
