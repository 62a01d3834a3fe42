"""How one family would run a step: seconds, bytes, memory, and what each device does."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """What each device does in one step, ``(devices,)`` each, in the order of the fleet."""

    down_bytes: Floats
    up_bytes: Floats
    flops: Floats
    memory_bytes: Floats
    """The most it holds at any time."""

    @classmethod
    def none(cls, n_devices: int) -> Loads:
        """Of a fleet that does nothing."""
        return cls(*(np.zeros(n_devices) for _ in range(4)))

    def plus(self, other: Loads, times: float = 1.0) -> Loads:
        """One after the other: costs add up, of memory the larger counts."""
        return Loads(
            self.down_bytes + times * other.down_bytes,
            self.up_bytes + times * other.up_bytes,
            self.flops + times * other.flops,
            np.maximum(self.memory_bytes, other.memory_bytes),
        )

    @property
    def is_used(self) -> npt.NDArray[np.bool_]:
        """Which devices do anything."""
        return np.asarray(sum(getattr(self, each.name) for each in fields(self)) > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a step that is planned once and done several times.

    Attributes:
        name: For people: ``"qkv forward"``, ``"layers"``, ``"head"``.
        times: How often a step does it.
        how: In which form: ``"block"``, ``"ksplit 8"``, ``"grid"``, ``"host"``.
        seconds: Makespan of doing it once.
        bound_s: What no plan of its kind can beat, for doing it once.
    """

    name: str
    times: float
    how: str
    seconds: float
    bound_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyPlan:
    """How one family runs a step.

    Attributes:
        family: ``"block"``, ``"ksplit"``, ``"mixed"`` or ``"grid"``.
        summary: For people, one line: ``"32 groups of 1 layer, up to 8 token x 2 feature blocks"``.
        step_s: Seconds of a step, the host's share included.
        bound_s: What no plan of this family can beat, the host's share included.
        host_s: The host's share: what devices wait for.
        parts: In order; their seconds add up to ``step_s - host_s`` unless the family overlaps
            them.
        loads: What each device does.
        resident_bytes: Bytes that devices keep from step to step and were sent before the first.
        left_out: Devices that get nothing, and why.
    """

    family: str
    summary: str
    step_s: float
    bound_s: float
    host_s: float
    parts: tuple[Part, ...]
    loads: Loads
    resident_bytes: float = 0.0
    left_out: tuple[tuple[int, str], ...] = ()

    @property
    def egress_bytes(self) -> float:
        """Bytes that the server sends in a step."""
        return float(self.loads.down_bytes.sum())

    @property
    def ingress_bytes(self) -> float:
        """Bytes that the server receives in a step."""
        return float(self.loads.up_bytes.sum())
