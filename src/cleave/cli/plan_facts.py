"""What a plan means for its users: each kind of device, a night, a whole run, money."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cleave.catalog.availability import enrolled
from cleave.catalog.gpus import Gpu, gpu
from cleave.cli.plan_today import Today, quickest_today
from cleave.core.device import HOURS_PER_DAY
from cleave.core.fleet import Fleet
from cleave.core.matrix import DType
from cleave.core.step.batch import Batch
from cleave.core.step.gains import line_seconds
from cleave.core.step.model import ModelShape
from cleave.core.step.plan import Alternative, Bottleneck, FamilyPlan, Gain, HostNeeds, StepPlan

RENTED = "A100 80GB SXM4"
WIRE_NAMES = {DType.BF16: "bf16", DType.F16: "fp16", DType.F32: "fp32"}
LAN_ROUND_TRIP_S = 0.005
"""A device that answers sooner is taken to be in the server's own network."""
USD_PER_GB = 0.05
"""What a server's traffic to the Internet costs if nothing else is said; inside a LAN nothing."""
_DAYS_PER_MONTH = 30
HOUR_S = 3600.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be planned, and at which price.

    Attributes:
        model: Its sizes.
        fleet: The devices that are there, all at once, and the server.
        fleet_name: For people.
        batch: One step.
        total_tokens: Of the whole run.
        usd_per_gb: Of what the server sends; None takes `USD_PER_GB`, and 0 if most devices are
            in its own network.
    """

    model: ModelShape
    fleet: Fleet
    fleet_name: str
    batch: Batch
    total_tokens: int
    usd_per_gb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KindFacts:
    """Devices of one kind.

    Attributes:
        kind: Its name.
        n_present: How many the fleet has.
        n_used: How many get work.
        down_bytes: Server to device, per step; as all that follows a mean over used ones.
        up_bytes: Device to server, per step.
        down_busy_share: Of the step, of its downlink or of the line that it shares.
        up_busy_share: Likewise of its uplink.
        compute_busy_share: Of the step, of its processor.
        memory_bytes: The most it holds at once.
        memory_lent_bytes: What its owner lends.
        hours_per_day: That it is there and may be used: a night.
        night_bytes: Both ways, in those hours; what stays on it is sent once a night.
        month_bytes: 30 nights.
        month_cap_bytes: The least that an owner of one allows, None for no limit.
        round_trip_s: Median.
        work_share: Of all operations, by all of them together.
    """

    kind: str
    n_present: int
    n_used: int
    down_bytes: float
    up_bytes: float
    down_busy_share: float
    up_busy_share: float
    compute_busy_share: float
    memory_bytes: float
    memory_lent_bytes: float
    hours_per_day: float
    night_bytes: float
    month_bytes: float
    month_cap_bytes: float | None
    round_trip_s: float
    work_share: float


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Devices without work, and why.

    Attributes:
        kind: Theirs.
        n_devices: How many of it are left out.
        reason: Of the first of them.
    """

    kind: str
    n_devices: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The whole run.

    Attributes:
        total_tokens: Asked for.
        n_steps: That many steps.
        run_s: If all devices are there all the time.
        calendar_s: If they are there only for their hours of each day, all at the same hours.
        n_enrolled: To have as many as are used there at any time, if hours are spread evenly.
        egress_bytes: Sent by the server.
        ingress_bytes: Received by it.
        usd_per_gb: Price of what it sends.
        traffic_usd: What that comes to.
        gpu: The rented GPU it is compared with.
        gpu_hours: Of it, at its usual share of its peak.
        gpu_usd: What those cost.
    """

    total_tokens: int
    n_steps: int
    run_s: float
    calendar_s: float
    n_enrolled: int
    egress_bytes: float
    ingress_bytes: float
    usd_per_gb: float
    traffic_usd: float
    gpu: str
    gpu_hours: float
    gpu_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """Everything that ``cleave plan`` says; its fields are the keys of the JSON.

    Attributes:
        model: Name of the model.
        parameters: Its weights.
        fleet: Name of the fleet.
        tokens: Of a step.
        length: Of a sequence.
        max_length: Of the longest that the model takes; None if that is not known.
        wire: Element type that travels.
        lora_rank: Of adapters; 0 trains all weights.
        step_s: Seconds of a step.
        tokens_per_s: Tokens over seconds.
        lower_bound_s: What no plan of this family can beat.
        ratio: Seconds over lower bound.
        family: Of the plan.
        summary: Its shape in words.
        today: The quickest plan that this version runs; None if none of them fits.
        alternatives: Other families, and why they lose.
        bottleneck: What binds.
        gains: What would help, most first.
        devices_present: In the fleet.
        devices_used: With work.
        down_bytes_per_device: Mean over used ones, per step.
        up_bytes_per_device: Likewise.
        kinds: Each kind of device, that with most of the work first.
        left_out: Devices without work.
        resident_bytes: Sent once, before the first step, and kept on the devices.
        host: What a step asks of the host.
        host_memory_bytes: All of its memory that is needed.
        host_memory_lent_bytes: What it has; None if that is not known.
        host_s: Seconds of a step in which devices wait for it.
        host_alone_s: The step without devices; None if its speed is not known.
        server_egress_bytes: Sent by the server in a step.
        server_ingress_bytes: Received by it.
        server_busy_share: Of the step, of the busier way of its network card or process.
        server_limit: Which of the two is the tighter one; empty if neither is known.
        devices_at_server_limit: Devices like these that keep it busy all the time; None if it has
            no limit.
        a100_flops_per_s: What training gets out of one rented GPU.
        a100_step_s: The step on as many rented GPUs as hold the model.
        a100_count: How many those are.
        a100_equivalents: Rented GPUs that would do a step in the same time.
        run: The whole run.
        plan_s: Seconds that planning took.
    """

    model: str
    parameters: int
    fleet: str
    tokens: int
    length: int
    max_length: int | None
    wire: str
    lora_rank: int
    step_s: float
    tokens_per_s: float
    lower_bound_s: float
    ratio: float
    family: str
    summary: str
    today: Today | None
    alternatives: tuple[Alternative, ...]
    bottleneck: Bottleneck
    gains: tuple[Gain, ...]
    devices_present: int
    devices_used: int
    down_bytes_per_device: float
    up_bytes_per_device: float
    kinds: tuple[KindFacts, ...]
    left_out: tuple[LeftOut, ...]
    resident_bytes: float
    host: HostNeeds
    host_memory_bytes: float
    host_memory_lent_bytes: float | None
    host_s: float
    host_alone_s: float | None
    server_egress_bytes: float
    server_ingress_bytes: float
    server_busy_share: float
    server_limit: str
    devices_at_server_limit: int | None
    a100_flops_per_s: float
    a100_step_s: float
    a100_count: int
    a100_equivalents: float
    run: RunFacts
    plan_s: float

    @property
    def is_forecast(self) -> bool:
        """Whether this version does not run the plan taken."""
        return self.today is None or self.today.family != self.family


def plan_facts(plan: StepPlan, question: Question, plan_s: float) -> PlanFacts:
    """What a plan means.

    Args:
        plan: The plan of a step.
        question: What was asked.
        plan_s: Seconds that planning took.
    """
    best, batch, model, server = plan.best, question.batch, question.model, question.fleet.server
    kinds = _kinds(best, question)
    n_used = sum(each.n_used for each in kinds)
    rented = gpu(RENTED)
    step_flops = model.step_flops(batch.tokens, batch.length, trains=not batch.is_frozen)
    one_gpu_s = step_flops / rented.sustained_flops_per_s
    run = _run(best, question, kinds, rented, one_gpu_s)
    n_gpus = math.ceil(_state_bytes(plan.host) / rented.memory_bytes)
    busy = max(best.egress_bytes, best.ingress_bytes) / server.egress_bytes_per_s / best.step_s
    return PlanFacts(
        model=model.name,
        parameters=model.parameters,
        fleet=question.fleet_name,
        tokens=batch.tokens,
        length=batch.length,
        max_length=model.max_length,
        wire=WIRE_NAMES[batch.wire],
        lora_rank=batch.lora_rank,
        step_s=best.step_s,
        tokens_per_s=batch.tokens / best.step_s,
        lower_bound_s=best.bound_s,
        ratio=best.step_s / best.bound_s,
        family=best.family,
        summary=best.summary,
        today=quickest_today(plan, batch.tokens, run.n_steps),
        alternatives=plan.alternatives,
        bottleneck=plan.bottleneck,
        gains=plan.gains,
        devices_present=len(question.fleet.devices),
        devices_used=n_used,
        down_bytes_per_device=best.egress_bytes / n_used,
        up_bytes_per_device=best.ingress_bytes / n_used,
        kinds=kinds,
        left_out=_left_out(best, question.fleet),
        resident_bytes=best.resident_bytes,
        host=plan.host,
        host_memory_bytes=plan.host.memory_bytes,
        host_memory_lent_bytes=_known(server.memory_bytes),
        host_s=best.host_s,
        host_alone_s=plan.host_alone_s,
        server_egress_bytes=best.egress_bytes,
        server_ingress_bytes=best.ingress_bytes,
        server_busy_share=busy,
        server_limit=_limit(question.fleet),
        devices_at_server_limit=round(n_used / busy) if busy else None,
        a100_flops_per_s=rented.sustained_flops_per_s,
        a100_step_s=one_gpu_s / n_gpus,
        a100_count=n_gpus,
        a100_equivalents=one_gpu_s / best.step_s,
        run=run,
        plan_s=plan_s,
    )


def _kinds(best: FamilyPlan, question: Question) -> tuple[KindFacts, ...]:
    fleet, loads, used = question.fleet, best.loads, best.loads.is_used
    devices = fleet.devices
    names = np.array([device.kind or "device" for device in devices])
    down_s, up_s = line_seconds(best.loads, fleet)
    rates = np.array([device.flops_per_s.get(question.batch.wire, np.inf) for device in devices])
    lent = np.array([device.memory_bytes for device in devices], dtype=np.float64)
    hours = np.array([device.caps.hours_per_day for device in devices])
    caps = np.array([device.caps.bytes_per_month for device in devices])
    round_trips = np.array([device.latency_s for device in devices])
    resident = best.resident_bytes / max(1, int(used.sum()))
    night = (
        np.where(used, resident, 0.0)
        + (loads.down_bytes + loads.up_bytes) * hours * HOUR_S / best.step_s
    )
    found: list[KindFacts] = []
    for name in dict.fromkeys(names.tolist()):
        mine = names == name
        chosen = mine & used

        those = chosen if chosen.any() else mine  # without work all that it does is 0

        def mean(values: Floats, those: npt.NDArray[np.bool_] = those) -> float:
            return float(values[those].mean())

        facts = KindFacts(
            kind=name,
            n_present=int(mine.sum()),
            n_used=int(chosen.sum()),
            down_bytes=mean(loads.down_bytes),
            up_bytes=mean(loads.up_bytes),
            down_busy_share=mean(down_s) / best.step_s,
            up_busy_share=mean(up_s) / best.step_s,
            compute_busy_share=mean(loads.flops / rates) / best.step_s,
            memory_bytes=mean(loads.memory_bytes),
            memory_lent_bytes=mean(lent),
            hours_per_day=mean(hours),
            night_bytes=mean(night),
            month_bytes=mean(night) * _DAYS_PER_MONTH,
            month_cap_bytes=_known(float(caps[those].min())),
            round_trip_s=float(np.median(round_trips[those])),
            work_share=float(loads.flops[chosen].sum() / max(1.0, loads.flops.sum())),
        )
        found.append(facts)
    return tuple(sorted(found, key=lambda facts: -facts.work_share))


def _left_out(best: FamilyPlan, fleet: Fleet) -> tuple[LeftOut, ...]:
    kinds = {device.device_id: device.kind or "device" for device in fleet.devices}
    counts = Counter(kinds[device_id] for device_id, _ in best.left_out)
    first: dict[str, str] = {}
    for device_id, reason in best.left_out:
        first.setdefault(kinds[device_id], reason)
    return tuple(LeftOut(kind, n, first[kind]) for kind, n in counts.most_common())


def _run(
    best: FamilyPlan,
    question: Question,
    kinds: tuple[KindFacts, ...],
    rented: Gpu,
    one_gpu_s: float,
) -> RunFacts:
    n_steps = math.ceil(question.total_tokens / question.batch.tokens)
    run_s = n_steps * best.step_s
    # A step is as fast as those who do most of its work are often there.
    mean_hours = sum(each.work_share * each.hours_per_day for each in kinds)
    usd_per_gb = question.usd_per_gb
    if usd_per_gb is None:
        usd_per_gb = 0.0 if is_on_lan(kinds) else USD_PER_GB
    egress = n_steps * best.egress_bytes + best.resident_bytes
    gpu_hours = n_steps * one_gpu_s / HOUR_S
    return RunFacts(
        total_tokens=question.total_tokens,
        n_steps=n_steps,
        run_s=run_s,
        calendar_s=run_s * HOURS_PER_DAY / mean_hours,
        n_enrolled=sum(enrolled(each.n_used, each.hours_per_day) for each in kinds),
        egress_bytes=egress,
        ingress_bytes=n_steps * best.ingress_bytes,
        usd_per_gb=usd_per_gb,
        traffic_usd=egress / 1e9 * usd_per_gb,
        gpu=rented.name,
        gpu_hours=gpu_hours,
        gpu_usd=gpu_hours * rented.usd_per_hour,
    )


def is_on_lan(kinds: tuple[KindFacts, ...]) -> bool:
    """Whether most of the devices are in the server's own network."""
    near = sum(each.n_used for each in kinds if each.round_trip_s < LAN_ROUND_TRIP_S)
    return 2 * near > sum(each.n_used for each in kinds)


def _limit(fleet: Fleet) -> str:
    server = fleet.server
    if math.isinf(server.egress_bytes_per_s):
        return ""
    is_card = server.nic_bytes_per_s <= server.process_bytes_per_s * server.n_processes
    return "network card" if is_card else "server process"


def _state_bytes(host: HostNeeds) -> float:
    return host.weights_bytes + host.gradients_bytes + host.optimizer_bytes


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
