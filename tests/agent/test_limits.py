"""The owner comes first, is told why, and nothing flaps."""

from pathlib import Path

import pytest

from cleave.agent.limits import Governor, MachineSensors, Readings, pause_reason

GOOD = Readings()
ON_BATTERY = Readings(on_battery=True, battery_percent=79.6)


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        (GOOD, None),
        (Readings(battery_percent=40.0), None),
        (ON_BATTERY, "on battery, 80 %"),
        (Readings(on_battery=True), "on battery"),
        (Readings(asked="a signal"), "asked by the owner with a signal"),
        (Readings(on_battery=True, asked="a signal"), "asked by the owner with a signal"),
    ],
)
def test_the_reason_names_the_value_read(readings: Readings, reason: str | None) -> None:
    assert pause_reason(readings) == reason


def test_an_owner_may_allow_the_battery_but_is_still_heard() -> None:
    assert pause_reason(ON_BATTERY, may_use_battery=True) is None
    asked = Readings(on_battery=True, asked="a signal")
    assert pause_reason(asked, may_use_battery=True) is not None


def test_it_pauses_at_once_and_resumes_after_ten_good_seconds() -> None:
    governor = Governor(resume_after_s=10.0)
    assert governor.update(None, 0.0) is None
    assert governor.update("on battery", 1.0) == "on battery"
    assert governor.update(None, 2.0) == "on battery"
    assert governor.update(None, 11.9) == "on battery"
    assert governor.update(None, 12.0) is None


def test_a_bad_moment_starts_the_wait_anew() -> None:
    governor = Governor(resume_after_s=10.0)
    governor.update("on battery", 0.0)
    governor.update(None, 1.0)
    governor.update("on battery, 5 %", 9.0)
    assert governor.update(None, 11.0) == "on battery, 5 %"
    assert governor.update(None, 20.9) == "on battery, 5 %"
    assert governor.update(None, 21.0) is None


def test_a_file_or_a_signal_asks_for_a_pause(tmp_path: Path) -> None:
    sensors = MachineSensors(tmp_path / "PAUSE")
    assert sensors.read().asked is None
    (tmp_path / "PAUSE").touch()
    assert sensors.read().asked == f"the file {tmp_path / 'PAUSE'}"
    sensors.asked_by_signal = True
    assert sensors.read().asked == "a signal"
