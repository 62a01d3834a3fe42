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

from cleave.core.planning.cost import CostForm, FleetArrays
from cleave.core.planning.held import lower_bound_held_s
from cleave.core.step.batch import Batch
from cleave.core.step.chains import Chain
from cleave.core.step.estimate import Sample
from cleave.core.step.flow import Stops
from cleave.core.step.forms import together
from cleave.core.step.model import ModelShape
from cleave.core.step.plan import FamilyPlan, Part
from cleave.core.step.tiled import Rectangle, Tiler, Tiling
from cleave.errors import PlanError

_LONGEST = 1024  # devices up to which segments of every length are tried


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


def plan(model: ModelShape, batch: Batch, tiler: Tiler, sample: Sample) -> FamilyPlan:
    """The quickest of all ways to spread the layers; without the head and the host's share.

    Args:
        model: Its layers.
        batch: Tokens, types, which weights change.
        tiler: The fleet.
        sample: The same fleet, thinned.

    Raises:
        PlanError: If the layers do not fit the devices.
    """
    least_s = bound_s(model, batch, tiler.arrays)
    seconds = np.inf
    best: tuple[_Layers, Tiling] | None = None
    errors: dict[str, None] = {}
    for kept, again in _candidates(model, batch, len(tiler.arrays)):
        kept_s, again_s = sample.seconds(kept.rectangle), sample.seconds(again.rectangle)
        # What is kept costs memory alone: where that does not bind, nothing is done twice.
        for layers, about_s in ((kept, kept_s), (again, again_s if again_s < kept_s else np.inf)):
            if about_s > seconds:
                continue
            try:
                tiling = tiler.cut(layers.rectangle)
            except PlanError as error:
                errors[f"{layers.name}: {error}"] = None
                continue
            layers_s = sum(layers.seconds(tiler, tiling))
            if layers_s < seconds:
                seconds, best = layers_s, (layers, tiling)
    if best is None:
        raise PlanError("; ".join(errors) or "no device can hold a layer")
    return _family_plan(*best, tiler, least_s)


def _family_plan(layers: _Layers, tiling: Tiling, tiler: Tiler, least_s: float) -> FamilyPlan:
    rectangle = layers.rectangle
    parts = tuple(
        Part(
            name=name,
            times=1,
            how="grid",
            seconds=seconds,
            bound_s=tiler.bound_s(form, rectangle),
            server_s=tiler.server_s(tiler.loads(tiling, form)),
            form=form,
            sides=rectangle.sides,
        )
        for name, form, seconds in zip(
            ("layers forward", "layers backward"),
            layers.forms,
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


def _candidates(
    model: ModelShape, batch: Batch, n_devices: int
) -> Iterator[tuple[_Layers, _Layers]]:
    """Whole layers in segments of at least so many, then slices of layers.

    Each with its activations kept, and computed again.
    """
    chain = Chain.of(model, batch)
    n_layers, n_sequences = model.n_layers, batch.n_sequences
    lengths = [1]
    if n_devices <= _LONGEST:
        while 2 * lengths[-1] < n_layers:
            lengths.append(2 * lengths[-1])
    if n_layers > 1:
        lengths.append(n_layers)
    for length in lengths:
        yield _Layers.both(chain, (n_sequences, n_layers), quantum=length)
    if n_devices >= n_layers and model.n_kv_heads > 1:
        slices = chain.sliced(model.n_kv_heads)
        yield _Layers.both(slices, (n_sequences, model.n_kv_heads), n_sliced=n_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """One way to spread the layers.

    Attributes:
        chain: A layer, or a slice of one.
        forms: Its forward and backward pass.
        keeps: Whether activations stay on the devices.
        sides: Sequences, and layers or the slices of a layer.
        quantum: Segments begin at multiples of so many layers.
        n_sliced: How many layers are cut into slices; 0 for whole layers.
    """

    chain: Chain
    forms: tuple[CostForm, CostForm]
    keeps: bool
    sides: tuple[int, int]
    quantum: int = 1
    n_sliced: int = 0

    @classmethod
    def both(
        cls, chain: Chain, sides: tuple[int, int], *, quantum: int = 1, n_sliced: int = 0
    ) -> tuple[_Layers, _Layers]:
        """With activations kept, and with them computed again."""
        kept, again = (
            cls(
                chain=chain,
                forms=chain.passes(keeps=keeps),
                keeps=keeps,
                sides=sides,
                quantum=quantum,
                n_sliced=n_sliced,
            )
            for keeps in (True, False)
        )
        return kept, again

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

    @property
    def name(self) -> str:
        """For people."""
        kept = "activations kept" if self.keeps else "activations computed again"
        if self.n_sliced:
            return f"slices of layers, {kept}"
        longer = f" in segments of {self.quantum} and more" if self.quantum > 1 else ""
        return f"whole layers{longer}, {kept}"

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
            f"{_many(len(segments), 'segment')} of {size} layer{'s' if many > 1 else ''}, each on "
            f"up to {_many(int(crowd.max()), 'device')}; activations {kept}"
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


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("s" if count > 1 else "")
