"""Rectangles cut over one fleet, and what a cut makes every device do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from cleave.core.fleet import Fleet
from cleave.core.matrix import DType
from cleave.core.planning.bound import lower_bound_s
from cleave.core.planning.cost import CostForm, FleetArrays, Floats, Ints, Terms, finish_s
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
    _arrays: FleetArrays = field(init=False)
    _able: Ints = field(init=False)

    def __post_init__(self) -> None:
        """Look up what every cut needs."""
        self._place = {device.device_id: i for i, device in enumerate(self.fleet.devices)}
        self._arrays = FleetArrays.of(self.fleet, self.dtype)
        self._able = np.array([self._place[each] for each in self._arrays.device_id.tolist()])

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
            self._bounds[key] = lower_bound_s(form, self._arrays, *rectangle.sides)
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
            if (memory[self._able] > self._arrays.memory_bytes * (1 + 1e-9)).any():
                raise PlanError("what is to stay on the devices needs more than they lend")
        else:
            np.maximum.at(memory, tiling.index, cost(form.memory))
        return Loads(
            total(cost(form.down)), total(cost(form.up)), total(form.flops * m * n), memory
        )

    def seconds(self, loads: Loads) -> float:
        """When the last device is done, and the sites and the server with all bytes."""
        able = self._able
        return finish_s(
            self._arrays, loads.down_bytes[able], loads.up_bytes[able], loads.flops[able]
        )

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
