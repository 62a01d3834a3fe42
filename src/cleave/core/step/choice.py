"""The best plan of a step for a fleet, and why the others lose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cleave.core.fleet import Fleet
from cleave.core.matrix import DType
from cleave.core.planning.cost import Floats
from cleave.core.step import grid
from cleave.core.step.batch import Batch
from cleave.core.step.blocks import FAMILIES, BlockPlanner, operations
from cleave.core.step.estimate import Sample
from cleave.core.step.gains import bottleneck, gains
from cleave.core.step.host import host_needs, require_room
from cleave.core.step.model import ModelShape
from cleave.core.step.plan import Alternative, FamilyPlan, HostNeeds, StepPlan
from cleave.core.step.tiled import Tiler
from cleave.errors import PlanError
from cleave.units import format_factor

_FOR_HEAD = 1 / 8  # of a device's memory that layers leave to the head
_NEAR = 1.5  # families estimated to be this close to the fastest are planned in full


def best_plan(model: ModelShape, fleet: Fleet, batch: Batch) -> StepPlan:
    """The fastest plan that fits devices and host, with the runners-up and why they lose.

    Raises:
        PlanError: If no family fits, or the host's memory is too small; it says what to do.
    """
    step = _Step(model, fleet, batch)
    plans: list[FamilyPlan] = []
    slower: list[Alternative] = []
    refused: list[Alternative] = []
    fastest_s = math.inf
    for family, seconds in step.estimates():
        if seconds > _NEAR * fastest_s:
            slower.append(_slower(family, seconds, fastest_s, is_estimate=True))
            continue
        try:
            plan = step.plan(family)
        except PlanError as error:
            refused.append(Alternative(family=family, step_s=None, reason=error.fact))
            continue
        plans.append(plan)
        fastest_s = min(fastest_s, plan.step_s)
    if not plans:
        raise _nothing_fits(refused, batch)
    best, *others = sorted(plans, key=lambda plan: plan.step_s)
    slower += [_slower(plan.family, plan.step_s, best.step_s) for plan in others]
    slower.sort(key=lambda each: each.step_s or 0.0)
    return StepPlan(
        best=best,
        alternatives=(*slower, *refused),
        bottleneck=bottleneck(best, fleet, batch.wire),
        gains=gains(best, fleet, batch.wire),
        host=step.host(best.family),
        host_alone_s=step.host_alone_s(),
    )


class _Step:
    """One step on one fleet, planned by family."""

    def __init__(self, model: ModelShape, fleet: Fleet, batch: Batch) -> None:
        self._model = model
        self._fleet = fleet
        self._batch = batch
        self._products = self._needs(layers_away=False)
        self._layers = self._needs(layers_away=True)
        if self._layers.memory_bytes > fleet.server.memory_bytes:
            require_room(self._layers, batch, fleet.server)
        sample = Sample(fleet, batch.wire)
        tiler = Tiler(fleet, batch.wire)
        self._arrays = tiler.arrays
        recomputes = self._products.is_recomputing
        parts = operations(model, batch, sample, recomputes=recomputes)
        self._blocks = BlockPlanner(parts, sample, tiler)
        self._heads = [part for part in parts if part.name == "head"]
        self._sample = sample

    def host(self, family: str) -> HostNeeds:
        """What a family asks of the host."""
        return self._layers if family == "grid" else self._products

    def host_alone_s(self) -> float | None:
        """The step without devices; None if the host's speed is not known."""
        server, batch = self._fleet.server, self._batch
        if math.isinf(server.flops_per_s):
            return None
        flops = self._model.step_flops(batch.tokens, batch.length, trains=not batch.is_frozen)
        return flops / server.flops_per_s + self._products.seconds

    def estimates(self) -> list[tuple[str, float]]:
        """About the seconds of a step by family, fastest first; infinite where it cannot be."""
        found = [
            (family, self._blocks.estimate_s(family) + self._products.seconds)
            for family in FAMILIES
        ]
        try:
            layers_s = grid.bound_s(self._model, self._batch, self._arrays)
            head_s = self._head().estimate_s("mixed")
            found.append(("grid", layers_s + head_s + self._layers.seconds))
        except PlanError:
            found.append(("grid", 0.0))  # planned, so that it says why it does not fit
        return sorted(found, key=lambda item: item[1])

    def plan(self, family: str) -> FamilyPlan:
        """The plan of a family, the host's share included.

        Raises:
            PlanError: If it does not fit the devices or the host.
        """
        needs = self.host(family)
        require_room(needs, self._batch, self._fleet.server)
        if family != "grid":
            return _with_host(self._blocks.plan(family), needs)
        lent = np.array([device.memory_bytes for device in self._fleet.devices], dtype=np.float64)
        room = lent * (1 - _FOR_HEAD) if self._heads else lent
        tiler = Tiler(self._fleet, self._batch.wire, room)
        layers = grid.plan(self._model, self._batch, tiler)
        head = self._head(lent - layers.loads.memory_bytes).plan("mixed")
        least_s = self._head().bound_s()  # other layers may leave it more room
        return _with_host(_in_turn(layers, replace(head, bound_s=least_s)), needs)

    def _head(self, memory_bytes: Floats | None = None) -> BlockPlanner:
        """The planner of the head, with what devices have left beside the layers."""
        tiler = Tiler(self._fleet, self._batch.wire, memory_bytes)
        return BlockPlanner(self._heads, self._sample, tiler)

    def _needs(self, *, layers_away: bool) -> HostNeeds:
        """The host's share; if all activations do not fit, they are computed again."""
        for recomputes in (False, True):
            needs = host_needs(
                self._model,
                self._batch,
                self._fleet.server,
                recomputes=recomputes,
                layers_away=layers_away,
            )
            if layers_away or needs.memory_bytes <= self._fleet.server.memory_bytes:
                break
        return needs


def _with_host(plan: FamilyPlan, needs: HostNeeds) -> FamilyPlan:
    host_s = plan.host_s + needs.seconds
    return replace(plan, step_s=plan.step_s + host_s, bound_s=plan.bound_s + host_s, host_s=host_s)


def _in_turn(layers: FamilyPlan, head: FamilyPlan) -> FamilyPlan:
    """The layers by one family, then the head by another, while the layers' weights stay."""
    idle = {who for who, _ in head.left_out}
    loads = layers.loads.plus(head.loads)
    memory = layers.loads.memory_bytes + head.loads.memory_bytes
    return replace(
        layers,
        summary="; ".join(text for text in (layers.summary, head.summary) if text),
        step_s=layers.step_s + head.step_s,
        bound_s=layers.bound_s + head.bound_s,
        parts=(*layers.parts, *head.parts),
        loads=replace(loads, memory_bytes=memory),
        left_out=tuple(item for item in layers.left_out if not head.parts or item[0] in idle),
    )


def _nothing_fits(refused: Sequence[Alternative], batch: Batch) -> PlanError:
    """What is missing, with the families that miss it, and what would do."""
    families: dict[str, list[str]] = {}
    for each in refused:
        families.setdefault(each.reason, []).append(each.family)
    facts = "; ".join(f"{fact} ({', '.join(those)})" for fact, those in families.items())
    remedies = ["use larger or more devices", "shorter sequences (--length)"]
    if not batch.is_frozen:
        remedies.append("adapters alone (--lora)")
    if batch.wire.itemsize == DType.F32.itemsize:
        remedies.append("two bytes an element (--wire bf16)")
    return PlanError(f"no plan fits this fleet: {facts}", ", or ".join(remedies))


def _slower(
    family: str, step_s: float, fastest_s: float, *, is_estimate: bool = False
) -> Alternative:
    times = format_factor(step_s / fastest_s)
    reason = f"{'about ' if is_estimate else ''}{times} times as long"
    return Alternative(family=family, step_s=step_s, reason=reason, is_estimate=is_estimate)
