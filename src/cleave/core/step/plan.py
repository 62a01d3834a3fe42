"""How one family would run a step: seconds, bytes, memory, and what each device does."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from cleave.core.planning.cost import CostForm

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
        busy_s: Of ``seconds``, those in which its devices are busy on average, or the server if
            that is longer; in the others they wait, for each other or for a round trip.
        server_s: How long the server takes to send all its bytes, and to receive them.
        form: What a tile of it costs, where it is one rectangle.
        sides: Rows and columns of that rectangle.
    """

    name: str
    times: float
    how: str
    seconds: float
    bound_s: float
    busy_s: float
    server_s: tuple[float, float] = (0.0, 0.0)
    form: CostForm | None = None
    sides: tuple[int, int] = (0, 0)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another way to run the step, and why it is not the one taken.

    Attributes:
        family: Which.
        step_s: What it would take, None if it does not fit.
        reason: Why it loses.
        is_estimate: Whether it loses by so much that it was not planned in full.
    """

    family: str
    step_s: float | None
    reason: str
    is_estimate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The resource that is busy for the largest share of the step, and how much all wait.

    Attributes:
        resource: ``"downlink"``, ``"uplink"``, ``"compute"``, ``"server egress"``,
            ``"server ingress"`` or ``"host"``.
        kind: Of which devices; empty for the server and the host.
        busy_share: Of the step, averaged over those devices.
        wait_share: Of the step, in which devices wait for each other or for round trips, on
            average, and not for the server.
        host_share: Of the step, in which devices wait for the host.
    """

    resource: str
    kind: str
    busy_share: float
    wait_share: float
    host_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What more of a resource would bring.

    Attributes:
        resource: As of `Bottleneck`, or ``"memory"``.
        kind: Of which devices; empty for the server and the host.
        step_s_gain: Relative change of the step's lower bound per relative change of the resource:
            with -0.6, 10 % more of it makes the bound 6 % shorter.
    """

    resource: str
    kind: str
    step_s_gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNeeds:
    """What a step asks of the host.

    Attributes:
        weights_bytes: The model, and its copy in the wire's type where that differs.
        gradients_bytes: Of trained parameters.
        optimizer_bytes: The optimiser's state.
        activation_bytes: What is kept between forward and backward.
        is_recomputing: Whether only layer inputs are kept and the rest is computed again.
        memory_traffic_bytes: Read and written in a step for norms, activations and the optimiser.
        seconds: That traffic at the host's memory bandwidth, and its arithmetic: devices wait.
    """

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    is_recomputing: bool
    memory_traffic_bytes: float
    seconds: float

    @property
    def memory_bytes(self) -> float:
        """All of it together."""
        return (
            self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.activation_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """The plan taken for a step, and what there is to know about it.

    Attributes:
        best: The fastest that fits.
        alternatives: The others, fastest first, those that do not fit last.
        bottleneck: What binds.
        gains: What would help, most first; what would not is left out.
        host: What it asks of the host.
        host_alone_s: The step on the host without devices; None if its speed is not known.
    """

    best: FamilyPlan
    alternatives: tuple[Alternative, ...]
    bottleneck: Bottleneck
    gains: tuple[Gain, ...]
    host: HostNeeds
    host_alone_s: float | None
