"""How many hours a day a kind of device is there and idle, and what that means for numbers."""

from __future__ import annotations

import math

from cleave.catalog.tables import rows
from cleave.core.device import HOURS_PER_DAY
from cleave.errors import ConfigError

_POPULATIONS = {
    "phone": "simulator default: phones",
    "tablet": "simulator default: phones",  # charged and used alike; no figures of their own
    "laptop": "simulator default: laptops",
    "desktop": "simulator default: desktops",
    "console": "simulator default: consoles / SBCs",
    "sbc": "simulator default: consoles / SBCs",
}


def hours_per_day(kind: str) -> float:
    """Hours of an average day in which a device of this kind is on, idle, powered and connected.

    From ``availability.csv``: phones 1.9 (measured), laptops 6 and desktops 14.4 (estimated).

    Raises:
        ConfigError: If there is no such kind.
    """
    if kind not in _POPULATIONS:
        raise ConfigError(
            f"no availability is known of {kind!r}: use one of {', '.join(_POPULATIONS)}"
        )
    share = next(
        float(row["value"])
        for row in rows("availability")
        if row["population"] == _POPULATIONS[kind] and row["metric"].startswith("available frac")
    )
    return HOURS_PER_DAY * share


def enrolled(n_present: int, hours: float) -> int:
    """Devices to enrol so that on average ``n_present`` are there at any time.

    Their hours are taken to be spread over the day. Phones come at night: 2.1 times as many at
    the best hour as at the worst (``availability.csv``).

    Args:
        n_present: Devices wanted.
        hours: That each is there a day: `hours_per_day`, or what its owner allows.

    Raises:
        ConfigError: If a day would have none, or more than 24, of these hours.
    """
    if not 0 < hours <= HOURS_PER_DAY:
        raise ConfigError(f"hours is {hours}, expected more than 0 and at most 24")
    return math.ceil(n_present * HOURS_PER_DAY / hours - 1e-9)
