"""How long devices are there, and how many must be enrolled for it."""

import pytest

from cleave.catalog.availability import enrolled, hours_per_day
from cleave.catalog.devices import KINDS
from cleave.errors import ConfigError


def test_hours_are_the_tables() -> None:
    assert hours_per_day("phone") == pytest.approx(24 * 0.081)
    assert hours_per_day("laptop") == pytest.approx(24 * 0.25)
    assert hours_per_day("desktop") == pytest.approx(24 * 0.6)
    assert all(0 < hours_per_day(kind) <= 24 for kind in KINDS)
    with pytest.raises(ConfigError, match="no availability is known of 'fridge'"):
        hours_per_day("fridge")


def test_who_is_there_a_quarter_of_the_day_is_needed_four_times() -> None:
    assert enrolled(1000, 6.0) == 4000
    assert enrolled(1000, 24.0) == 1000
    assert enrolled(1, 23.0) == 2


@pytest.mark.parametrize("hours", [0.0, -1.0, 24.5, float("nan")])
def test_hours_that_no_day_has_are_refused(hours: float) -> None:
    with pytest.raises(ConfigError, match=f"hours is {hours}"):
        enrolled(1, hours)
