"""Rectangles cut over one fleet, and what a cut makes every device do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from cleave.core.fleet import Fleet
from cleave.core.matrix import DType
from cleave.core.planning.bound import lower_bound_s
from cleave.core.planning.cost import CostForm, FleetArrays, Floats, Ints, Terms, finish_s, line_s
from cleave.core.planning.held import lower_bound_held_s
from cleave.core.planning.reasons import Reasons
from cleave.core.planning.slabs import cut_slabs
from cleave.core.planning.volume import product_bound_s
from cleave.core.step.plan import Loads


@dataclass(frozen=True, slots=True)
class Rectangle:
    """What is to be cut.

    Attributes:
        form: What a tile costs.
        sides: Rows and columns.
        quanta: Tiles begin at multiples of this many rows and columns.
        n_slabs: So many rectangles of this kind side by side, each done by a group of devices:
            slabs of the inner axis, or layers.
        is_held: Whether all that a device's tiles need stays with it, so that it has to have room
            for all of them at once.
    """

    form: CostForm
    sides: tuple[int, int]
    quanta: tuple[int, int] = (1, 1)
    n_slabs: int = 1
    is_held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tiling:
    """A cut: who does tiles of which sides.

    Attributes:
        index: Place in the fleet of each tile's device, ``(tiles,)``.
        spans: row0, row1, col0 and col1 of each tile, ``(tiles, 4)``; columns count on from one
            slab to the next.
        rectangle: What is cut.
        makespan_s: When the last device is done.
        bound_s: What no cut of the rectangle can beat.
    """

    index: Ints
    spans: Ints
    rectangle: Rectangle
    makespan_s: float
    bound_s: float

    @property
    def rows(self) -> Floats:
        """How many rows each tile has."""
        return (self.spans[:, 1] - self.spans[:, 0]).astype(np.float64)

    @property
    def cols(self) -> Floats:
        """How many columns each tile has."""
        return (self.spans[:, 3] - self.spans[:, 2]).astype(np.float64)


@dataclass(slots=True)
class Tiler:
    """Cuts rectangles for one fleet and one element type; equal ones are cut once.

    Attributes:
        fleet: Who does the tiles.
        dtype: What they compute with.
        memory_bytes: What each may hold, ``(devices,)``, where that is not all that it lends.
        arrays: Those that can compute with the type.
    """

    fleet: Fleet
    dtype: DType
    memory_bytes: Floats | None = None
    arrays: FleetArrays = field(init=False)
    _tilings: dict[Rectangle, Tiling] = field(init=False, default_factory=dict)
    _bounds: dict[Rectangle, float] = field(init=False, default_factory=dict)
    _product_bounds: dict[tuple[tuple[int, int, int], ...], float] = field(
        init=False, default_factory=dict
    )
    _able: Ints = field(init=False)

    def __post_init__(self) -> None:
        """Look up what every cut needs."""
        self._able = np.array(
            [i for i, each in enumerate(self.fleet.devices) if self.dtype in each.flops_per_s],
            dtype=np.int64,
        )
        self.arrays = FleetArrays.of(self.fleet, self.dtype)
        if self.memory_bytes is not None:
            lent = self.memory_bytes[self._able]
            self.arrays = replace(self.arrays, memory_bytes=lent)

    def narrowed(self, chosen: npt.NDArray[np.bool_]) -> Tiler:
        """As if those of ``arrays`` that are not chosen had no memory at all."""
        memory = np.zeros(len(self.fleet.devices))
        memory[self._able] = self.arrays.memory_bytes * chosen
        return Tiler(self.fleet, self.dtype, memory)

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
            (n_rows, n_cols), n_slabs = rectangle.sides, rectangle.n_slabs
            lower = lower_bound_held_s if rectangle.is_held else lower_bound_s
            self._bounds[key] = lower(form, self.arrays, n_rows, n_cols * n_slabs)
        return self._bounds[key]

    def product_bound_s(self, sizes: tuple[tuple[int, int, int], ...]) -> float:
        """What no cut of products ``(m, k) @ (k, n)`` that are done at once can beat."""
        if sizes not in self._product_bounds:
            self._product_bounds[sizes] = product_bound_s(sizes, self.dtype.itemsize, self.arrays)
        return self._product_bounds[sizes]

    def loads(self, tiling: Tiling, form: CostForm) -> Loads:
        """What work of this form on these tiles asks of each device."""
        m, n, n_devices = tiling.rows, tiling.cols, len(self.fleet.devices)

        def cost(terms: Terms) -> Floats:
            return terms[0] + terms[1] * m + terms[2] * n + terms[3] * m * n

        def total(values: Floats) -> Floats:
            sums = np.bincount(tiling.index, weights=values, minlength=n_devices)
            return sums.astype(np.float64)

        memory = np.zeros(n_devices)
        if tiling.rectangle.is_held:
            memory = total(cost(form.memory))
        else:
            np.maximum.at(memory, tiling.index, cost(form.memory))
        return Loads(
            total(cost(form.down)), total(cost(form.up)), total(form.flops * m * n), memory
        )

    def devices(self, tiling: Tiling) -> FleetArrays:
        """The device of each tile, ``(tiles,)``."""
        return self.arrays.take(np.searchsorted(self._able, tiling.index))

    def seconds(self, loads: Loads) -> float:
        """When the last device is done, and the sites and the server with all bytes."""
        able = self._able
        return finish_s(
            self.arrays, loads.down_bytes[able], loads.up_bytes[able], loads.flops[able]
        )

    def busy_s(self, loads: Loads) -> float:
        """How long the devices with work are busy on average, or the server if that is longer.

        A device is as busy as its links, the line that it shares, or its processor, whichever is
        most. Round trips are not in it.
        """
        able, each = self._able, self.arrays
        down, up, flops = loads.down_bytes[able], loads.up_bytes[able], loads.flops[able]
        down_s = line_s(down, each.downlink_bytes_per_s, each.site, each.site_downlink_bytes_per_s)
        up_s = line_s(up, each.uplink_bytes_per_s, each.site, each.site_uplink_bytes_per_s)
        busy_s = np.maximum(np.maximum(down_s, up_s), flops / each.flops_per_s)
        used = down + up + flops > 0
        return max(float(busy_s[used].mean()) if used.any() else 0.0, *self.server_s(loads))

    def left_out(self, tiling: Tiling) -> tuple[tuple[int, str], ...]:
        """Devices that get nothing of a cut, and why."""
        rectangle = tiling.rectangle
        (n_rows, n_cols), quanta = rectangle.sides, rectangle.quanta
        smallest = min(quanta[0], n_rows), min(quanta[1], n_cols)
        used = {self.fleet.devices[i].device_id for i in np.unique(tiling.index).tolist()}
        why = Reasons(rectangle.form, self.arrays, (n_rows, n_cols), smallest, tiling.makespan_s)
        return why.left_out(self.fleet, self.dtype, used)

    def server_s(self, loads: Loads) -> tuple[float, float]:
        """How long the server takes to send all bytes, and to receive them."""
        server = self.fleet.server
        return (
            float(loads.down_bytes.sum()) / server.egress_bytes_per_s,
            float(loads.up_bytes.sum()) / server.ingress_bytes_per_s,
        )

    def _cut(self, rectangle: Rectangle) -> Tiling:
        form, sides, quanta = rectangle.form, rectangle.sides, rectangle.quanta
        found = cut_slabs(
            form, self.arrays, sides, quanta, n_slabs=rectangle.n_slabs, is_held=rectangle.is_held
        )
        spans = found.cells[:, 1:].copy()
        spans[:, 2:] += found.slab[:, None] * sides[1]
        return Tiling(
            index=self._able[found.cells[:, 0]],
            spans=spans,
            rectangle=rectangle,
            makespan_s=found.makespan_s,
            bound_s=found.bound_s,
        )
