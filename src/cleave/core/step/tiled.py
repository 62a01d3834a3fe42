"""Rectangles cut over one fleet, and what a cut makes every device do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from cleave.core.fleet import Fleet
from cleave.core.matrix import DType
from cleave.core.planning.bound import lower_bound_s
from cleave.core.planning.cost import CostForm, FleetArrays, Floats, Ints, Terms
from cleave.core.planning.partition import partition
from cleave.core.step.plan import Loads
from cleave.errors import PlanError


@dataclass(frozen=True, slots=True)
class Rectangle:
    """What is to be cut.

    Attributes:
        form: What a tile costs.
        sides: Rows and columns.
        quanta: Tiles begin at multiples of this many rows and columns.
        n_slabs: So many rectangles of this kind side by side, each done by a group of devices:
            slabs of the inner axis, or experts.
    """

    form: CostForm
    sides: tuple[int, int]
    quanta: tuple[int, int] = (1, 1)
    n_slabs: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tiling:
    """A cut: who does tiles of which sides.

    Attributes:
        index: Place in the fleet of each tile's device, ``(tiles,)``.
        rows: Of each tile.
        cols: Of each tile.
        bound_s: What no cut of the rectangle can beat.
        left_out: Devices that get nothing, and why.
    """

    index: Ints
    rows: Floats
    cols: Floats
    bound_s: float
    left_out: tuple[tuple[int, str], ...]


@dataclass(slots=True)
class Tiler:
    """Cuts rectangles for one fleet and one element type; equal ones are cut once.

    Attributes:
        fleet: Who does the tiles.
        dtype: What they compute with.
    """

    fleet: Fleet
    dtype: DType
    _place: dict[int, int] = field(init=False)
    _tilings: dict[Rectangle, Tiling] = field(init=False, default_factory=dict)
    _bounds: dict[Rectangle, float] = field(init=False, default_factory=dict)
    _rates: _Rates = field(init=False)

    def __post_init__(self) -> None:
        """Look up what every cut needs."""
        self._place = {device.device_id: i for i, device in enumerate(self.fleet.devices)}
        self._rates = _Rates.of(self.fleet, self.dtype)

    def cut(self, rectangle: Rectangle) -> Tiling:
        """The cut of a rectangle.

        Raises:
            PlanError: If no device can hold the smallest tile.
        """
        tiling = self._tilings.get(rectangle)
        if tiling is None:
            tiling = self._tilings[rectangle] = self._cut(rectangle)
        return tiling

    def bound_s(self, form: CostForm, rectangle: Rectangle) -> float:
        """What no cut of a rectangle can beat for work of this form, perhaps not its own."""
        if form == rectangle.form:
            return self.cut(rectangle).bound_s
        key = replace(rectangle, form=form)
        if key not in self._bounds:
            arrays = FleetArrays.of(self.fleet, self.dtype)
            self._bounds[key] = lower_bound_s(form, arrays, *rectangle.sides)
        return self._bounds[key]

    def loads(self, tiling: Tiling, form: CostForm, *, is_held: bool = False) -> Loads:
        """What work of this form on these tiles asks of each device.

        Args:
            tiling: The tiles.
            form: What a tile costs.
            is_held: Whether all tiles of a device are in its memory at once, not one by one.

        Raises:
            PlanError: If a device would hold more than it lends.
        """
        m, n, n_devices = tiling.rows, tiling.cols, len(self.fleet.devices)

        def cost(terms: Terms) -> Floats:
            return terms[0] + terms[1] * m + terms[2] * n + terms[3] * m * n

        def total(values: Floats) -> Floats:
            sums = np.bincount(tiling.index, weights=values, minlength=n_devices)
            return sums.astype(np.float64)

        memory = np.zeros(n_devices)
        if is_held:
            memory = total(cost(form.memory))
            if (memory > self._rates.memory_bytes * (1 + 1e-9)).any():
                raise PlanError("what is to stay on the devices needs more than they lend")
        else:
            np.maximum.at(memory, tiling.index, cost(form.memory))
        return Loads(
            total(cost(form.down)), total(cost(form.up)), total(form.flops * m * n), memory
        )

    def seconds(self, loads: Loads) -> float:
        """When the last device is done, and the sites and the server with all bytes."""
        return self._rates.seconds(loads)

    def _cut(self, rectangle: Rectangle) -> Tiling:
        form, sides = rectangle.form, rectangle.sides
        cut = partition(form, self.fleet, self.dtype, sides, rectangle.quanta)
        index = [self._place[placement.device_id] for placement in cut.tiles]
        return Tiling(
            index=np.array(index, dtype=np.int64),
            rows=np.array([placement.tile.n_rows for placement in cut.tiles], dtype=np.float64),
            cols=np.array([placement.tile.n_cols for placement in cut.tiles], dtype=np.float64),
            bound_s=cut.bound_s,
            left_out=cut.left_out,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rates:
    downlink_bytes_per_s: Floats
    uplink_bytes_per_s: Floats
    flops_per_s: Floats
    latency_s: Floats
    memory_bytes: Floats
    site: Ints
    site_down_bytes_per_s: Floats
    site_up_bytes_per_s: Floats
    egress_bytes_per_s: float
    ingress_bytes_per_s: float

    @classmethod
    def of(cls, fleet: Fleet, dtype: DType) -> _Rates:
        places = {0: 0, **{site.site_id: i for i, site in enumerate(fleet.sites, 1)}}
        devices = fleet.devices

        def array(values: list[float]) -> Floats:
            return np.array(values, dtype=np.float64)

        return cls(
            downlink_bytes_per_s=array([d.downlink_bytes_per_s for d in devices]),
            uplink_bytes_per_s=array([d.uplink_bytes_per_s for d in devices]),
            flops_per_s=array([d.flops_per_s.get(dtype, np.inf) for d in devices]),
            latency_s=array([d.latency_s for d in devices]),
            memory_bytes=array([d.memory_bytes for d in devices]),
            site=np.array([places[d.site_id] for d in devices], dtype=np.int64),
            site_down_bytes_per_s=array([np.inf, *(s.downlink_bytes_per_s for s in fleet.sites)]),
            site_up_bytes_per_s=array([np.inf, *(s.uplink_bytes_per_s for s in fleet.sites)]),
            egress_bytes_per_s=fleet.server.egress_bytes_per_s,
            ingress_bytes_per_s=fleet.server.ingress_bytes_per_s,
        )

    def seconds(self, loads: Loads) -> float:
        busy_s = np.maximum(
            np.maximum(
                loads.down_bytes / self.downlink_bytes_per_s,
                loads.up_bytes / self.uplink_bytes_per_s,
            ),
            loads.flops / self.flops_per_s,
        )
        used = loads.is_used
        if not used.any():
            return 0.0
        first_s = float(self.latency_s[used].min())
        shared_s = max(
            loads.down_bytes.sum() / self.egress_bytes_per_s,
            loads.up_bytes.sum() / self.ingress_bytes_per_s,
            self._busiest_site_s(loads.down_bytes, self.site_down_bytes_per_s),
            self._busiest_site_s(loads.up_bytes, self.site_up_bytes_per_s),
        )
        return max(float((self.latency_s + busy_s)[used].max()), first_s + float(shared_s))

    def _busiest_site_s(self, n_bytes: Floats, bytes_per_s: Floats) -> float:
        sums = np.bincount(self.site, weights=n_bytes, minlength=len(bytes_per_s))
        return float((sums / bytes_per_s).max())
