"""The family `grid`: segments of layers stay on devices, and sequences flow through them.

A plan is a cut of sequences x layers (see `chains`): a tile's columns are a segment of whole layers
with weights that stay for the step, its rows the sequences that flow through them. Uneven devices
get uneven tiles. One tile per device over all layers is data parallelism, one over all sequences a
pipeline. Where a layer is more than a device can hold, or there are more devices than that gives
tiles, a layer is cut by features too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cleave.core.planning.cost import CostForm, FleetArrays, Floats
from cleave.core.planning.held import lower_bound_held_s
from cleave.core.step.batch import Batch
from cleave.core.step.chains import Chain
from cleave.core.step.flow import Stops
from cleave.core.step.forms import together
from cleave.core.step.model import ModelShape
from cleave.core.step.plan import FamilyPlan, Part
from cleave.core.step.tiled import Rectangle, Tiler, Tiling
from cleave.errors import PlanError
from cleave.units import format_number


def bound_s(model: ModelShape, batch: Batch, devices: FleetArrays) -> float:
    """What no plan of whole or sliced layers can beat, the head and the host not counted.

    Every such plan sends at least a layer's input and its weights, and holds at least the weights:
    a slice sends more activations, and what is computed again is sent again. No pass is faster than
    its own bound, nor both than that of their sums.

    Raises:
        PlanError: If the devices together cannot hold the weights.
    """
    chain = Chain.of(model, batch)
    passes = chain.passes(keeps=True)
    forward_s, backward_s, both_s = (
        lower_bound_held_s(
            replace(form, memory=(0.0, 0.0, chain.held_weights_bytes, 0.0)),
            devices,
            batch.n_sequences,
            model.n_layers,
        )
        for form in (*passes, together(*passes))
    )
    return max(forward_s + backward_s, both_s)


def plan(model: ModelShape, batch: Batch, tiler: Tiler) -> FamilyPlan:
    """The quickest of all ways to spread the layers; without the head and the host's share.

    Raises:
        PlanError: If the layers do not fit the devices.
    """
    least_s = bound_s(model, batch, tiler.arrays)
    search = _Search(Chain.of(model, batch), model.n_layers, batch.n_sequences)
    search.whole_layers(tiler)
    search.slices(tiler, model.n_kv_heads)
    if search.best is None:
        raise PlanError("; ".join(f"{what}: {fact}" for what, fact in search.lacks.items()))
    return _family_plan(*search.best, least_s)


class _Search:
    """Looks for the way whose last sequence is through first.

    A cut says how much each device does, not how long sequences take to flow through it: that is
    computed for each cut, and the best is looked for among cuts for the devices that pass a
    sequence on quickest, and with segments of several layers, which take fewer stops.

    Attributes:
        best: The quickest way so far, its tiles and who cut them.
        lacks: Why the way that holds least does not fit, of whole layers and of slices.
    """

    def __init__(self, chain: Chain, n_layers: int, n_sequences: int) -> None:
        self._chain = chain
        self._n_layers = n_layers
        self._n_sequences = n_sequences
        self._seconds = np.inf
        self._chosen: Tiler | None = None
        self.best: tuple[_Layers, Tiling, Tiler] | None = None
        self.lacks: dict[str, str] = {}

    def whole_layers(self, tiler: Tiler) -> None:
        """Half the devices and half of those, as long as that helps; then longer segments."""
        for part in _quickest(tiler, self._chain):
            if not self._improves(part, self._chain, (self._n_sequences, self._n_layers)):
                break
        length = 2
        while length <= self._n_layers:
            sides = self._n_sequences, self._n_layers
            if not self._improves(self._chosen or tiler, self._chain, sides, quantum=length):
                break
            length *= 2

    def slices(self, tiler: Tiler, n_slices: int) -> None:
        """Slices of layers, unless the stops alone take too long: two a layer in each pass."""
        chain = self._chain.sliced(n_slices)
        stops_s = np.sort(_stop_s(tiler.arrays, chain))[: self._n_layers]
        if n_slices > 1 and len(stops_s) == self._n_layers and 4 * stops_s.sum() < self._seconds:
            part = self._chosen or tiler
            self._improves(part, chain, (self._n_sequences, n_slices), n_sliced=self._n_layers)

    def _improves(
        self,
        tiler: Tiler,
        chain: Chain,
        sides: tuple[int, int],
        *,
        quantum: int = 1,
        n_sliced: int = 0,
    ) -> bool:
        """Whether one of two ways is the best so far: activations kept, or computed again.

        Slices hold little: theirs are computed again only if they cannot be kept.
        """
        before_s = self._seconds
        for keeps in (True, False):
            layers = _Layers(chain, keeps, sides, quantum, n_sliced)
            try:
                tiling = tiler.cut(layers.rectangle)
            except PlanError as error:
                if not keeps and quantum == 1:
                    what = "slices of layers" if n_sliced else "whole layers"
                    self.lacks.setdefault(what, error.fact)
                continue
            layers_s = sum(layers.seconds(tiler, tiling))
            if layers_s < self._seconds:
                self._seconds, self._chosen = layers_s, tiler
                self.best = layers, tiling, tiler
            if n_sliced:
                break
        return self._seconds < before_s or not np.isfinite(before_s)


def _quickest(tiler: Tiler, chain: Chain) -> Iterator[Tiler]:
    """All devices, then the half that passes a sequence on quickest, half of those, and so on."""
    yield tiler
    stop_s = _stop_s(tiler.arrays, chain)
    order = np.argsort(stop_s, kind="stable")
    n_devices = len(order) // 2
    while n_devices and stop_s[order[n_devices - 1]] < stop_s[order[-1]]:
        chosen = np.zeros(len(order), dtype=bool)
        chosen[order[:n_devices]] = True
        yield tiler.narrowed(chosen)
        n_devices //= 2


def _stop_s(devices: FleetArrays, chain: Chain) -> Floats:
    """How long a sequence stops at each device for one layer of one pass, ``(devices,)``."""
    links_s = 1 / devices.downlink_bytes_per_s + 1 / devices.uplink_bytes_per_s
    flops = (chain.forward_flops + chain.backward_flops) / 2
    return np.asarray(
        devices.latency_s + chain.hidden_bytes * links_s + flops / devices.flops_per_s
    )


def _family_plan(layers: _Layers, tiling: Tiling, tiler: Tiler, least_s: float) -> FamilyPlan:
    rectangle = layers.rectangle
    loads = [tiler.loads(tiling, form) for form in layers.forms]
    parts = tuple(
        Part(
            name=name,
            times=1,
            how="grid",
            seconds=seconds,
            bound_s=tiler.bound_s(form, rectangle),
            busy_s=tiler.busy_s(asked),
            server_s=tiler.server_s(asked),
            form=form,
            sides=rectangle.sides,
        )
        for name, form, asked, seconds in zip(
            ("layers forward", "layers backward"),
            layers.forms,
            loads,
            layers.seconds(tiler, tiling),
            strict=True,
        )
    )
    return FamilyPlan(
        family="grid",
        summary=layers.summary(tiling),
        step_s=sum(part.seconds for part in parts),
        bound_s=least_s,
        host_s=0.0,
        parts=parts,
        loads=tiler.loads(tiling, rectangle.form),
        resident_bytes=layers.chain.resident_weights_bytes * float(tiling.cols.sum()),
        left_out=tiler.left_out(tiling),
    )


@dataclass(frozen=True, slots=True)
class _Layers:
    """One way to spread the layers.

    Attributes:
        chain: A layer, or a slice of one.
        keeps: Whether activations stay on the devices.
        sides: Sequences, and layers or the slices of a layer.
        quantum: Segments begin at multiples of so many layers.
        n_sliced: How many layers are cut into slices; 0 for whole layers.
    """

    chain: Chain
    keeps: bool
    sides: tuple[int, int]
    quantum: int = 1
    n_sliced: int = 0

    @property
    def forms(self) -> tuple[CostForm, CostForm]:
        """Forward and backward pass."""
        return self.chain.passes(keeps=self.keeps)

    @property
    def rectangle(self) -> Rectangle:
        """What is cut."""
        return Rectangle(
            together(*self.forms),
            self.sides,
            (1, self.quantum),
            n_slabs=max(1, self.n_sliced),
            is_held=True,
        )

    def summary(self, tiling: Tiling) -> str:
        """For people: which groups of devices do what."""
        segments, crowd = np.unique(tiling.spans[:, 2:], axis=0, return_counts=True)
        lengths = segments[:, 1] - segments[:, 0]
        few, many = int(lengths.min()), int(lengths.max())
        size = f"{few}" if few == many else f"{few} to {many}"
        kept = "kept" if self.keeps else "computed again"
        if self.n_sliced:
            return (
                f"each of {self.n_sliced} layers on a group of devices, in slices of {size} of "
                f"{self.sides[1]} KV heads; activations {kept}"
            )
        return (
            f"{format_number(len(segments), 'segment')} of {size} layer{'s' if many > 1 else ''}, "
            f"each on up to {format_number(int(crowd.max()), 'device')}; activations {kept}"
        )

    def seconds(self, tiler: Tiler, tiling: Tiling) -> tuple[float, float]:
        """Each pass with every sequence going from layer to layer.

        Lines that devices share, and the server, take at least as long as their bytes.
        """
        forward, backward = (self._stops(form, tiler, tiling) for form in self.forms)
        forward_s, backward_s = (tiler.seconds(tiler.loads(tiling, form)) for form in self.forms)
        return max(forward.end_s(), forward_s), max(backward.turned().end_s(), backward_s)

    def _stops(self, form: CostForm, tiler: Tiler, tiling: Tiling) -> Stops:
        """Where sequences stop on their way up.

        A slice of a layer is two stops, attention and MLP. A device with several tiles or stops
        does them by turns.
        """
        device = tiler.devices(tiling)
        n_tiles = np.bincount(tiling.index)[tiling.index]
        down_s = n_tiles / device.downlink_bytes_per_s
        up_s = n_tiles / device.uplink_bytes_per_s
        flop_s = n_tiles / device.flops_per_s
        enters, leaves = tiling.spans[:, 2], tiling.spans[:, 3]
        if self.n_sliced:
            enters = 2 * (tiling.spans[:, 2] // self.sides[1])
            leaves = enters + 1
        once = Stops(
            row0=tiling.spans[:, 0],
            row1=tiling.spans[:, 1],
            enters=enters,
            leaves=leaves,
            latency_s=device.latency_s,
            first_s=form.down[2] * tiling.cols * down_s,
            down_s=form.down[1] * down_s,
            compute_s=form.flops * tiling.cols * flop_s,
            up_s=form.up[1] * up_s,
            last_s=form.up[2] * tiling.cols * up_s,
        )
        return once.and_one_further() if self.n_sliced else once
