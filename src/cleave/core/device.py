"""What is known of a device: its rates, its memory, what it can run, what its owner allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from cleave.core.checks import require_positive
from cleave.core.matrix import DType
from cleave.errors import ConfigError

HOURS_PER_DAY = 24.0
_MOST = {  # beyond these a value is a slip of units, not a machine
    "flops_per_s": 1e17,
    "downlink_bytes_per_s": 1e13,
    "uplink_bytes_per_s": 1e13,
    "memory_bytes": 1 << 50,
    "latency_s": 60.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What the owner of a device allows; by default all of it.

    Attributes:
        downlink_bytes_per_s: Server to device, at most.
        uplink_bytes_per_s: Device to server, at most.
        bytes_per_month: Both ways together, in 30 days.
        hours_per_day: Hours of an average day in which it may be used and is there.

    Raises:
        ConfigError: If a value is zero, negative or not a number, or a day has over 24 hours.
    """

    downlink_bytes_per_s: float = math.inf
    uplink_bytes_per_s: float = math.inf
    bytes_per_month: float = math.inf
    hours_per_day: float = HOURS_PER_DAY

    def __post_init__(self) -> None:
        """Refuse what would poison a plan."""
        for name in self.__slots__:
            require_positive("caps", name, getattr(self, name), may_be_infinite=True)
        if self.hours_per_day > HOURS_PER_DAY:
            raise ConfigError(f"caps: hours_per_day is {self.hours_per_day}, expected 24 or less")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """A device as the planner sees it. Measured, or drawn from a table.

    Attributes:
        device_id: Never used twice; a device that comes back is a new one.
        name: For people.
        kind: Its class, for people and for sums over devices of a kind: ``"phone"``.
        flops_per_s: Sustained rate by element type; a type that is missing may not be sent there.
        downlink_bytes_per_s: Server to device, what its owner's cap leaves of the link.
        uplink_bytes_per_s: Device to server, likewise.
        latency_s: Round trip.
        memory_bytes: What its owner lends.
        ops: Names of the program ops it has; empty means all.
        site_id: The access link that it shares with others (`Site`); 0 if it has its own.
        caps: What its owner allows.

    Raises:
        ConfigError: If a value is zero, negative, infinite, absurd or not a number; it names the
            field.
    """

    device_id: int
    name: str = ""
    kind: str = ""
    flops_per_s: Mapping[DType, float] = field(default_factory=dict)
    downlink_bytes_per_s: float = 1e9
    uplink_bytes_per_s: float = 1e9
    latency_s: float = 0.0
    memory_bytes: int = 1 << 30
    ops: frozenset[str] = frozenset()
    site_id: int = 0
    caps: Caps = Caps()

    def __post_init__(self) -> None:
        """Refuse what would poison a plan; rates are cut down to what the owner allows."""
        who = f"device {self.name or self.device_id}"
        for dtype, rate in self.flops_per_s.items():
            require_positive(who, f"flops_per_s[{dtype.value}]", rate, most=_MOST["flops_per_s"])
        for name in ("downlink_bytes_per_s", "uplink_bytes_per_s", "memory_bytes"):
            require_positive(who, name, getattr(self, name), most=_MOST[name])
        if not 0 <= self.latency_s <= _MOST["latency_s"]:
            raise ConfigError(
                f"{who}: latency_s is {self.latency_s}, "
                f"expected 0 to {_MOST['latency_s']:g} seconds"
            )
        for name in ("downlink_bytes_per_s", "uplink_bytes_per_s"):
            object.__setattr__(self, name, min(getattr(self, name), getattr(self.caps, name)))

    def can_run(self, ops: frozenset[str], dtype: DType) -> bool:
        """Whether it has every op of ``ops`` and may be given ``dtype``."""
        return dtype in self.flops_per_s and (not self.ops or ops <= self.ops)
