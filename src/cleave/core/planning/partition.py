"""Cuts work between devices so that the last of them finishes as early as possible."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cleave.core.device import DeviceProfile
from cleave.core.fleet import Fleet
from cleave.core.layout import Placement
from cleave.core.matrix import DType, Region
from cleave.core.planning.bound import (
    area_within,
    first_time_s,
    lower_bound_s,
    tile_area_limit,
)
from cleave.core.planning.columns import cut_columns
from cleave.core.planning.cost import (
    CostForm,
    FleetArrays,
    Floats,
    Ints,
    makespan_s,
    tiles_time_s,
)
from cleave.core.planning.few import ColumnSearch
from cleave.core.planning.reasons import Reasons, too_small
from cleave.core.planning.sites import share
from cleave.core.planning.tiling import cut_equally
from cleave.errors import PlanError

_FEW = 16  # tiles for which every grouping into columns is tried
_HANDFUL = 4  # devices for which one order has to do: as many agents wait for their plan
_MANY = 1 << 14  # tiles that are all made equal, as there are enough to share out evenly
_NEARLY = 0.99  # whole cells of all: a time in which so many are done is near enough
_SLACKS = (1.5, 2.25)  # tiles per device, as multiples of what memory asks for
_STRETCHES = (1.001, 1.03, 1.06, 1.1, 1.2)  # times, as multiples of the bound, tried by turns
_COARSE = 32  # cells per device below which whole cells decide, and no time says more than another
_GOOD = 1.02  # of the bound: no better cut is looked for
_GOOD_IF_LARGE = 1.05  # where that takes long
_LARGE = 1024  # devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A rectangle cut into tiles without gap or overlap, and who does them.

    Attributes:
        tiles: Each with its device; a device may have several, done one after the other.
        makespan_s: When the last device is done.
        bound_s: No cut for these devices can be done sooner.
        left_out: Devices that get nothing, and why.
    """

    tiles: tuple[Placement, ...]
    makespan_s: float
    bound_s: float
    left_out: tuple[tuple[int, str], ...]


def partition(
    form: CostForm,
    fleet: Fleet,
    dtype: DType,
    sides: tuple[int, int],
    quanta: tuple[int, int] = (1, 1),
) -> Partition:
    """The cut of a rectangle for which the last device finishes early, near the lower bound.

    Every tile fits its device's memory; where one tile cannot hold all that a device should do, it
    gets several. A device that would only make it longer gets none. Among up to 16 devices that
    could each hold all of it, and with quanta that divide the sides, a further device never makes
    it longer (the search stops within 0.03 %).

    Args:
        form: What a tile costs.
        fleet: Who may take part; devices without a rate for ``dtype`` are left out.
        dtype: What the work computes with.
        sides: Rows and columns of the rectangle.
        quanta: Tiles begin at multiples of this many rows and columns.

    Raises:
        PlanError: If no device may be given ``dtype``, or none can hold the smallest tile.
    """
    n_rows, n_cols = sides
    if n_rows == 0 or n_cols == 0:
        return Partition(tiles=(), makespan_s=0.0, bound_s=0.0, left_out=())
    grid = _Grid(n_rows, n_cols, min(quanta[0], n_rows), min(quanta[1], n_cols))
    needed_bytes = form.memory_bytes(grid.row_quantum, grid.col_quantum)
    roomy = [device for device in fleet.devices if device.memory_bytes >= needed_bytes]
    able = FleetArrays.of(replace(fleet, devices=tuple(roomy)), dtype)
    if not len(able):
        raise _no_device(fleet.devices, dtype, needed_bytes)
    done = cut(form, able, sides, quanta)
    ids = able.device_id[done.cells[:, 0]].tolist()
    tiles = tuple(
        Placement(Region(*span), device_id)
        for device_id, span in zip(ids, done.cells[:, 1:].tolist(), strict=True)
    )
    why = Reasons(form, able, sides, (grid.row_quantum, grid.col_quantum), done.makespan_s)
    return Partition(
        tiles=tiles,
        makespan_s=done.makespan_s,
        bound_s=done.bound_s,
        left_out=why.left_out(fleet, dtype, set(ids)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A partition as arrays.

    Attributes:
        cells: Index of the device, row0, row1, col0, col1 of each tile, ``(tiles, 5)``.
        makespan_s: As of `Partition`.
        bound_s: Likewise.
    """

    cells: Ints
    makespan_s: float
    bound_s: float


def cut(
    form: CostForm,
    fleet: FleetArrays,
    sides: tuple[int, int],
    quanta: tuple[int, int] = (1, 1),
    *,
    once: bool = False,
) -> Cut:
    """As `partition`, of devices that can each hold the smallest tile, and of at least one cell.

    With ``once`` no device gets more than one tile.

    Raises:
        PlanError: If one tile for each device is not enough.
    """
    grid = _Grid(*sides, min(quanta[0], sides[0]), min(quanta[1], sides[1]))
    bound_s = lower_bound_s(form, fleet, *sides)
    in_quanta = form.in_units(grid.row_quantum, grid.col_quantum)
    cells = _Search(in_quanta, fleet, grid.sides, bound_s, once).best()
    cells[:, 1:3] = np.minimum(cells[:, 1:3] * grid.row_quantum, sides[0])
    cells[:, 3:5] = np.minimum(cells[:, 3:5] * grid.col_quantum, sides[1])
    return Cut(cells, makespan_s(form, fleet, cells), bound_s)


@dataclass(frozen=True, slots=True)
class _Grid:
    """A rectangle and the quanta in which it is cut; the last row and column may be smaller."""

    n_rows: int
    n_cols: int
    row_quantum: int
    col_quantum: int

    @property
    def sides(self) -> tuple[int, int]:
        """Rows and columns in quanta."""
        return -(-self.n_rows // self.row_quantum), -(-self.n_cols // self.col_quantum)


class _Search:
    """The search for the best cut of a rectangle, in quanta.

    Args:
        form: Cost of a tile by its sides in quanta.
        fleet: Devices that can each hold a tile of one quantum.
        sides: Rows and columns of the rectangle in quanta.
        bound_s: No cut is done sooner.
        once: Whether a device gets one tile at most.
    """

    def __init__(
        self,
        form: CostForm,
        fleet: FleetArrays,
        sides: tuple[int, int],
        bound_s: float,
        once: bool,
    ) -> None:
        self._form = form
        self._fleet = fleet
        self._sides = sides
        self._bound_s = bound_s
        self._once = once
        self._seen: set[bytes] = set()  # fleets of few slots: what is found does not depend on time

    def best(self) -> Ints:
        """Device index, row0, row1, col0 and col1 of each tile; ``(tiles, 5)``.

        What is done in the time of the bound says how lines are shared and how many tiles a device
        does. Where no cut comes near that time, what is done in a longer one may say it better.
        """
        best_s = math.inf
        best: Ints | None = None
        n_cells = self._sides[0] * self._sides[1]
        is_coarse = n_cells < _COARSE * len(self._fleet)
        for stretch in _STRETCHES[:2] if is_coarse else _STRETCHES:
            time_s = self._bound_s * stretch
            if best_s <= time_s:
                break
            alone = share(self._form, self._fleet, self._sides, time_s)
            place = _places(self._fleet, alone)
            good_s = self._bound_s * (_GOOD if len(alone) <= _LARGE else _GOOD_IF_LARGE)
            for cells in self._cuts(alone, time_s):
                cells[:, 0] = place[cells[:, 0]]
                finish_s = makespan_s(self._form, self._fleet, cells)
                if finish_s < best_s:
                    best_s, best = finish_s, cells
                if best is not None and best_s <= good_s:
                    return best
        if best is None:
            raise PlanError(f"a tile for each of {len(self._fleet)} devices is not enough")
        return best

    def _cuts(self, fleet: FleetArrays, time_s: float) -> Iterator[Ints]:
        """Cuts for devices with links of their own."""
        form, sides = self._form, self._sides
        if len(fleet) <= _FEW and form.memory_bytes(*sides) <= fleet.memory_bytes.min():
            yield from self._cut_few(fleet, tiles_time_s(form, fleet, *sides))
            if len(fleet) <= _HANDFUL and not self._fleet.shares_lines:
                return
        areas, time_s = _whole_areas(form, fleet, sides, time_s)
        tile = np.maximum(tile_area_limit(form, fleet, *sides), 1.0)
        if self._once:
            sizes = np.minimum(areas, tile)
            used = np.flatnonzero(sizes)
            for cells in self._cut_slots(fleet.take(used), sizes[used], time_s):
                cells[:, 0] = used[cells[:, 0]]
                yield cells
            return
        is_cut = False
        for n_tiles in _numbers_of_tiles(areas, tile):
            owners = np.repeat(np.arange(len(fleet)), n_tiles)
            slots = fleet.take(owners, shares=1 / n_tiles[owners])
            sizes = np.minimum(areas[owners] / n_tiles[owners], tile[owners])
            for cells in self._cut_slots(slots, sizes, time_s):
                is_cut = True
                cells[:, 0] = owners[cells[:, 0]]
                yield cells
        if not is_cut or (areas > tile).any():
            yield cut_equally(form, fleet, sides)

    def _cut_slots(self, slots: FleetArrays, sizes: Floats, time_s: float) -> Iterator[Ints]:
        """A cut into one tile for each slot, unless memory forbids it."""
        if len(slots) <= _FEW:
            yield from self._cut_few(slots, tiles_time_s(self._form, slots, *self._sides))
            yield from self._cut_few(slots, -sizes)
        elif len(slots) <= _MANY:
            cells = cut_columns(self._form, slots, sizes, time_s, self._sides)
            if cells is not None:
                yield cells

    def _cut_few(self, slots: FleetArrays, rank: Floats) -> Iterator[Ints]:
        """The better of the best cut into columns and the best into rows; nothing if it was tried.

        Args:
            slots: What may do one tile each.
            rank: Columns take the slots in the order of this.
        """
        n_rows, n_cols = self._sides
        order = np.argsort(rank, kind="stable")
        key = np.stack([slots.device_id, slots.downlink_bytes_per_s])[:, order].tobytes()
        if key in self._seen:
            return
        self._seen.add(key)
        ranked = slots.take(order).rates()
        columns = ColumnSearch(self._form, ranked, n_rows, n_cols).fastest(self._bound_s)
        high_s = columns[0] if columns else math.inf
        turned = ColumnSearch(self._form.transposed, ranked, n_cols, n_rows)
        rows = turned.fastest(self._bound_s, high_s)
        if rows:
            cells = np.array(rows[1], dtype=np.int64)[:, [0, 3, 4, 1, 2]]
        elif columns:
            cells = np.array(columns[1], dtype=np.int64)
        else:
            return
        cells[:, 0] = order[cells[:, 0]]
        yield cells


def _places(fleet: FleetArrays, part: FleetArrays) -> Ints:
    """The index in ``fleet`` of each device of ``part``."""
    if part is fleet:
        return np.arange(len(fleet))
    places = {device_id: i for i, device_id in enumerate(fleet.device_id.tolist())}
    return np.array([places[device_id] for device_id in part.device_id.tolist()])


def _numbers_of_tiles(areas: Floats, tile: Floats) -> Iterator[Ints]:
    """How many tiles each device may do: about as many as memory asks for, at least, and more."""
    least = np.ceil(areas / tile)
    about = np.minimum(np.maximum(np.rint(areas / tile), 1.0), least)
    before = None
    for n_tiles in (about, least, *(np.ceil(areas / tile * slack) for slack in _SLACKS)):
        if before is None or (n_tiles != before).any():
            yield n_tiles.astype(np.int64)
        before = n_tiles


def _whole_areas(
    form: CostForm, fleet: FleetArrays, sides: tuple[int, int], time_s: float
) -> tuple[Floats, float]:
    """Whole cells that each device can do in ``time_s``, or in a longer time, if needed; and it."""
    n_cells = sides[0] * sides[1]

    def done(times_s: Floats) -> Floats:
        areas = np.floor(area_within(form, fleet, *sides, times_s[:, None]))
        return np.asarray(areas.sum(axis=1) / n_cells)

    areas = np.floor(area_within(form, fleet, *sides, time_s))
    if areas.sum() < _NEARLY * n_cells:
        first_s = float(fleet.latency_s.min())
        time_s = first_time_s(done, fleet, time_s - first_s) * (1 + 1e-3)
        areas = np.floor(area_within(form, fleet, *sides, time_s))
    return areas, time_s


def _no_device(devices: Sequence[DeviceProfile], dtype: DType, needed_bytes: int) -> PlanError:
    able = [device for device in devices if dtype in device.flops_per_s]
    if not able:
        return PlanError(
            f"no device may be given {dtype.value}",
            "wait for one that can compute it, or use another type",
        )
    return too_small(needed_bytes, max(device.memory_bytes for device in able))
