"""The families `block`, `ksplit` and `mixed`: a step as one cut product after the other.

Layer by layer, each product goes out over all devices and the next waits for it; the two gradients
of a layer's weights and input go out together, since only one of them is waited for. `block` keeps
the inner axis of every product whole, `ksplit` cuts it where that is faster than not to cut it
along another form's axes, `mixed` takes for each product whichever is done first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from cleave.core.planning.cost import CostForm
from cleave.core.planning.slabs import numbers_of_slabs
from cleave.core.step.batch import Batch
from cleave.core.step.estimate import Sample
from cleave.core.step.forms import (
    attention_forms,
    backward_on_tiles,
    forward_held,
    gemm_forms,
    head_forms,
    head_forms_alone,
    holding,
    together,
)
from cleave.core.step.model import Linear, ModelShape
from cleave.core.step.plan import FamilyPlan, Loads, Part
from cleave.core.step.tiled import Rectangle, Tiler, Tiling
from cleave.errors import PlanError

FAMILIES = ("block", "ksplit", "mixed")


@dataclass(frozen=True, slots=True)
class Pass:
    """One product, attention or loss in one direction.

    Attributes:
        form: What a tile costs.
        rectangle: What is cut; its own form may cover more passes than this one.
        product: Its m, n and k, if it is a product that may be cut along any of its axes.
        resident_bytes: Bytes per column of a tile that were sent before the first step.
    """

    form: CostForm
    rectangle: Rectangle
    product: tuple[int, int, int] | None = None
    resident_bytes: float = 0.0

    @classmethod
    def alone(cls, rectangle: Rectangle) -> Pass:
        """A pass that is cut for itself."""
        return cls(rectangle.form, rectangle)


@dataclass(frozen=True, slots=True)
class Way:
    """How the passes of one part of the model may be run.

    Attributes:
        how: ``"block"``, ``"ksplit"``.
        note: For people: which form.
        stages: One after the other; the passes of a stage go out together.
    """

    how: str
    note: str
    stages: tuple[tuple[Pass, ...], ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """A part of the model with all the ways in which it may be run.

    Attributes:
        name: For people.
        times: How often a step has it.
        ways: To choose from.
    """

    name: str
    times: int
    ways: tuple[Way, ...]


def operations(
    model: ModelShape, batch: Batch, sample: Sample, *, recomputes: bool
) -> tuple[Operation, ...]:
    """What a step consists of, each with the ways to run it.

    Args:
        model: Its linear layers and attention, layer by layer, and its head.
        batch: Tokens, types, which weights change.
        sample: The fleet, to tell how finely an inner axis is worth cutting.
        recomputes: Whether the forward pass of each layer is done again in its backward pass.
    """
    ways = _Ways(model, batch, sample, recomputes)
    linears = [
        Operation(each.name, model.n_layers * each.copies, ways.of_linear(each))
        for each in model.linears
    ]
    forward, backward = attention_forms(model, batch)
    rectangle = Rectangle(forward, (batch.n_sequences, model.n_kv_heads))
    stages = [(Pass.alone(rectangle),), (Pass.alone(replace(rectangle, form=backward)),)]
    attention = Way("block", "a sequence and KV head", ways.with_recomputation(stages))
    found = [linears[0], Operation("attention", model.n_layers, (attention,)), *linears[1:]]
    if model.head is not None:
        found.append(Operation("head", 1, ways.of_head()))
    return tuple(found)


class _Ways:
    def __init__(self, model: ModelShape, batch: Batch, sample: Sample, recomputes: bool) -> None:
        self._model = model
        self._batch = batch
        self._sample = sample
        self._recomputes = recomputes
        itemsize = batch.wire.itemsize
        head = 0 if model.head is None else model.head.parameters
        self._weights_bytes = itemsize * float(model.n_layers * model.layer_parameters + head)
        n_kept = 1 if recomputes else model.n_layers
        self._kept_row_bytes = itemsize * n_kept * float(sum(each.k for each in model.linears))
        self._kept_col_bytes = itemsize * n_kept * float(model.layer_parameters)

    def with_recomputation(
        self, stages: Sequence[tuple[Pass, ...]]
    ) -> tuple[tuple[Pass, ...], ...]:
        """The stages with the forward pass a second time, if it is done again."""
        if not self._recomputes:
            return tuple(stages)
        again = tuple(replace(each, resident_bytes=0.0) for each in stages[0])
        return (stages[0], again, *stages[1:])

    def of_linear(self, linear: Linear) -> tuple[Way, ...]:
        """All ways to run a linear layer's passes."""
        m = max(1, round(self._batch.tokens * linear.share))
        found = self._frozen(linear, m) if self._batch.is_frozen else [self._kept(linear, m)]
        sizes = [(m, linear.n, linear.k), (m, linear.k, linear.n)]
        if not self._batch.is_frozen:
            sizes.append((linear.k, linear.n, m))
        choices = [self._products(*each) for each in sizes]
        whole = [Pass.alone(each.rectangle) for (each, *_) in choices]
        cut = [self._quickest(inner) for (_, *inner) in choices]
        best = [self._quickest(every) for every in choices]
        for how, note, passes in (
            ("block", "inner axis whole", whole),
            ("ksplit", "inner axis cut", cut),
            ("mixed", "each product in its fastest form", best),
        ):
            stages = self.with_recomputation([(passes[0],), tuple(passes[1:])])
            found.append(Way(how, note, stages))
        return tuple(found)

    def of_head(self) -> tuple[Way, ...]:
        """The head with its loss: both passes on the same tiles, or each on its own."""
        forward, backward = head_forms(self._model, self._batch)
        sides = (self._batch.tokens, self._model.vocab)
        first, second = (
            Rectangle(form, sides) for form in head_forms_alone(self._model, self._batch)
        )
        alone = ((Pass.alone(first),), (Pass.alone(second),))
        if self._batch.is_frozen:
            head = self._model.hidden * self._model.vocab * self._batch.wire.itemsize
            backward = holding(backward, 1.0, self._weights_bytes / head)
        rectangle = Rectangle(together(forward, backward), sides, is_held=True)
        kept = _on_same_tiles(forward, backward, rectangle)
        return (
            Way("block", "blocks of the vocabulary", kept),
            Way("block", "blocks of the vocabulary, sent twice", alone),
        )

    def _kept(self, linear: Linear, m: int) -> Way:
        """Operands stay where the forward pass took them; gradients come up as partial sums."""
        form, *_ = gemm_forms(m, linear.n, linear.k, self._batch.wire)
        itemsize = self._batch.wire.itemsize
        row_scale = self._kept_row_bytes / (linear.k * itemsize)
        col_scale = self._kept_col_bytes / (linear.k * linear.n * itemsize)
        forward = holding(form, row_scale, col_scale)
        backward = backward_on_tiles(forward, trains=True)
        rectangle = Rectangle(together(forward, backward), (m, linear.n), is_held=True)
        stages = self.with_recomputation(_on_same_tiles(forward, backward, rectangle))
        return Way("ksplit", "backward on the forward pass' tiles", stages)

    def _frozen(self, linear: Linear, m: int) -> list[Way]:
        """Weights lie on the devices for good: as columns, or as columns and as rows."""
        itemsize = self._batch.wire.itemsize
        form, *_ = gemm_forms(m, linear.n, linear.k, self._batch.wire)
        other, *_ = gemm_forms(m, linear.k, linear.n, self._batch.wire)
        scale = self._weights_bytes / (linear.k * linear.n * itemsize)
        forward = forward_held(form, scale)
        backward = replace(backward_on_tiles(form, trains=False), memory=forward.memory)
        rectangle = Rectangle(together(forward, backward), (m, linear.n), is_held=True)
        first, second = _on_same_tiles(forward, backward, rectangle)
        column = float(linear.k * itemsize)
        once = self.with_recomputation(
            [tuple(replace(each, resident_bytes=column) for each in first), second]
        )
        twice = [
            (Pass(held, Rectangle(held, (m, n), is_held=True), resident_bytes=column),)
            for held, n, column in (
                (forward_held(form, 2 * scale), linear.n, float(linear.k * itemsize)),
                (forward_held(other, 2 * scale), linear.k, float(linear.n * itemsize)),
            )
        ]
        return [
            Way("ksplit", "weights on the devices for good", once),
            Way("block", "weights on the devices for good, twice", self.with_recomputation(twice)),
        ]

    def _products(self, m: int, n: int, k: int) -> list[Pass]:
        """The forms of one product: first with the inner axis whole, then all that cut it."""
        over_mn, over_kn, over_mk = gemm_forms(m, n, k, self._batch.wire)
        found = [Rectangle(over_mn, (m, n)), Rectangle(over_kn, (k, n)), Rectangle(over_mk, (m, k))]
        sample = self._sample
        for n_slabs in numbers_of_slabs((m, n, k), sample.arrays, sample.n_devices):
            form, *_ = gemm_forms(m, n, -(-k // n_slabs), self._batch.wire)
            found.append(Rectangle(form, (m, n), n_slabs=n_slabs))
        return [Pass(each.form, each, product=(m, n, k)) for each in found]

    def _quickest(self, passes: Iterable[Pass]) -> Pass:
        return min(passes, key=lambda each: self._sample.seconds(each.rectangle))


@dataclass(slots=True)
class _Run:
    """One operation run in one way, once."""

    loads: Loads
    parts: list[Part] = field(default_factory=list)
    resident_bytes: float = 0.0
    first: Tiling | None = None


class BlockPlanner:
    """Plans the three families of one model, batch and fleet.

    Args:
        operations: What a step consists of.
        sample: The fleet, thinned.
        tiler: The fleet.
    """

    def __init__(self, operations: Sequence[Operation], sample: Sample, tiler: Tiler) -> None:
        self._operations = operations
        self._sample = sample
        self._tiler = tiler

    def estimate_s(self, family: str) -> float:
        """About the devices' seconds of a step."""
        return sum(
            each.times * self._estimate_s(self._ways(each, family)[0]) for each in self._operations
        )

    def bound_s(self) -> float:
        """What no way of running the operations can beat.

        Raises:
            PlanError: If something fits no device in any way.
        """
        return sum(each.times * self._least_s(each) for each in self._operations)

    def _least_s(self, operation: Operation) -> float:
        found: list[float] = []
        errors: list[PlanError] = []
        for way in operation.ways:
            try:
                found.append(sum(self._bound_s(stage) for stage in way.stages))
            except PlanError as error:
                errors.append(error)
        if not found:
            raise errors[0]
        return min(found)

    def plan(self, family: str) -> FamilyPlan:
        """The devices' share of a step: every rectangle cut, every device's load known.

        Raises:
            PlanError: If something fits no device.
        """
        loads = Loads.none(len(self._tiler.fleet.devices))
        done: list[Part] = []
        resident_bytes = 0.0
        first: Tiling | None = None
        for operation in self._operations:  # what fits nowhere is found before others are cut
            if math.isinf(self._estimate_s(self._ways(operation, family)[0])):
                self._first_that_fits(operation, family)
        for operation in self._operations:
            run = self._first_that_fits(operation, family)
            done += run.parts
            loads = loads.plus(run.loads, operation.times)
            resident_bytes += operation.times * run.resident_bytes
            first = first or run.first
        return FamilyPlan(
            family=family,
            summary=_summary(done),
            step_s=sum(part.times * part.seconds for part in done),
            bound_s=sum(part.times * part.bound_s for part in done),
            host_s=0.0,
            parts=tuple(done),
            loads=loads,
            resident_bytes=resident_bytes,
            left_out=self._left_out(first, loads),
        )

    def _left_out(self, first: Tiling | None, loads: Loads) -> tuple[tuple[int, str], ...]:
        """Devices that get nothing in the whole step, and why nothing of its first cut."""
        if first is None or loads.is_used.all():
            return ()
        devices = zip(self._tiler.fleet.devices, loads.is_used, strict=True)
        unused = {device.device_id for device, is_used in devices if not is_used}
        return tuple(each for each in self._tiler.left_out(first) if each[0] in unused)

    def _ways(self, operation: Operation, family: str) -> list[Way]:
        """The ways of a family, quickest first; all of them where it has none of its own."""
        ways = [way for way in operation.ways if family == "mixed" or way.how == family]
        return sorted(ways or operation.ways, key=self._estimate_s)

    def _estimate_s(self, way: Way) -> float:
        return sum(
            self._sample.seconds(replace(each.rectangle, form=each.form))
            for stage in way.stages
            for each in stage
        )

    def _first_that_fits(self, operation: Operation, family: str) -> _Run:
        """The quickest way for which there is room."""
        errors: list[str] = []
        for way in self._ways(operation, family):
            try:
                return self._run(operation, way)
            except PlanError as error:
                errors.append(error.fact)
        raise PlanError(f"{operation.name}: " + "; ".join(dict.fromkeys(errors)))

    def _bound_s(self, stage: Sequence[Pass]) -> float:
        """What no plan of this kind can beat; of products, however they are cut."""
        products = tuple(each.product for each in stage if each.product is not None)
        if len(products) == len(stage):
            return self._tiler.product_bound_s(products)
        return max(self._tiler.bound_s(each.form, each.rectangle) for each in stage)

    def _run(self, operation: Operation, way: Way) -> _Run:
        run = _Run(Loads.none(len(self._tiler.fleet.devices)))
        for i, stage in enumerate(way.stages):
            directions = ["forward", *["forward again"] * (len(way.stages) - 2), "backward"]
            at_once = Loads.none(len(self._tiler.fleet.devices))
            for each in stage:
                tiling = self._tiler.cut(each.rectangle)
                asked = self._tiler.loads(tiling, each.form)
                at_once = at_once.plus(asked)
                run.first = run.first or tiling
                run.resident_bytes += each.resident_bytes * float(tiling.cols.sum())
            run.loads = run.loads.plus(at_once)
            run.parts.append(
                Part(
                    name=f"{operation.name} {directions[i]}",
                    times=operation.times,
                    how=_how(way, stage),
                    seconds=self._tiler.seconds(at_once),
                    bound_s=self._bound_s(stage),
                    busy_s=self._tiler.busy_s(at_once),
                    server_s=self._tiler.server_s(at_once),
                    form=stage[0].form,
                    sides=stage[0].rectangle.sides,
                )
            )
        return run


def _how(way: Way, stage: tuple[Pass, ...]) -> str:
    slabs = max(each.rectangle.n_slabs for each in stage)
    return f"{way.how}, {way.note}" + (f", up to {slabs} slabs" if slabs > 1 else "")


def _summary(parts: Iterable[Part]) -> str:
    """Which products run in which form: ``"qkv, out, up, down: inner axis cut"``."""
    names: dict[str, dict[str, None]] = {}
    for part in parts:
        form = part.how.partition(", ")[2].partition(", up to")[0]
        names.setdefault(form, {})[part.name.split()[0]] = None
    return "; ".join(f"{', '.join(those)}: {form}" for form, those in names.items())


def _on_same_tiles(
    forward: CostForm, backward: CostForm, rectangle: Rectangle
) -> tuple[tuple[Pass, ...], ...]:
    return (Pass(forward, rectangle),), (Pass(backward, rectangle),)
