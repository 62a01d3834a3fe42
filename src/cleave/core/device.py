"""What is known of a device: its rates, its memory, what it can run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from cleave.core.matrix import DType
from cleave.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """A device as the planner sees it. Measured, or drawn from a table.

    Attributes:
        device_id: Never used twice; a device that comes back is a new one.
        name: For people.
        flops_per_s: Sustained rate by element type; a type that is missing may not be sent there.
        downlink_bytes_per_s: Server to device.
        uplink_bytes_per_s: Device to server.
        latency_s: Round trip.
        memory_bytes: What its owner lends.
        ops: Names of the program ops it has; empty means all.

    Raises:
        ConfigError: If a value is zero, negative, infinite or not a number; it names the field.
    """

    device_id: int
    name: str = ""
    flops_per_s: Mapping[DType, float] = field(default_factory=dict)
    downlink_bytes_per_s: float = 1e9
    uplink_bytes_per_s: float = 1e9
    latency_s: float = 0.0
    memory_bytes: int = 1 << 30
    ops: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse what would poison a plan."""
        rates = {f"flops_per_s[{dtype.value}]": rate for dtype, rate in self.flops_per_s.items()}
        positive = {
            **rates,
            "downlink_bytes_per_s": self.downlink_bytes_per_s,
            "uplink_bytes_per_s": self.uplink_bytes_per_s,
            "memory_bytes": self.memory_bytes,
        }
        for name, value in positive.items():
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(
                    f"device {self.name or self.device_id}: {name} is {value}, "
                    "expected a positive finite number"
                )
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise ConfigError(
                f"device {self.name or self.device_id}: latency_s is {self.latency_s}, "
                "expected 0 or more"
            )

    def can_run(self, ops: frozenset[str], dtype: DType) -> bool:
        """Whether it has every op of ``ops`` and may be given ``dtype``."""
        return dtype in self.flops_per_s and (not self.ops or ops <= self.ops)
