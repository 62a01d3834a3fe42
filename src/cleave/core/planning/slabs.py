"""Several rectangles side by side, each done by a group of devices of its own.

A product whose inner axis is cut in s slabs is s rectangles of rows x columns, and each device
returns partial sums of one of them. With a cell of volume V, downlink D and uplink U the sides
``m = n = (2 V U / D)^(1/3)`` keep both busy for the same time, and bytes per device fall as
P^(-2/3) with P devices, instead of P^(-1/2) as with whole inner axes. The layers of a grid plan,
and the experts of a layer, are rectangles side by side as well.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from cleave.core.planning.bound import area_within, lower_bound_s, tile_area_limit
from cleave.core.planning.columns import cut_columns_each
from cleave.core.planning.cost import (
    CostForm,
    FleetArrays,
    Floats,
    Ints,
    Rates,
    makespan_s,
    tile_cost,
)
from cleave.core.planning.held import cut_held, lower_bound_held_s
from cleave.core.planning.partition import cut
from cleave.core.planning.reasons import LEND_MORE, too_small
from cleave.core.planning.sites import share
from cleave.errors import PlanError
from cleave.units import format_bytes

_CROWD = 32  # devices of a group for which columns of the cheapest width come near the bound
_GOOD = 1.04  # of the bound
FEWEST_FOR_SLABS = 17  # devices; fewer do as well with whole inner axes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlabCut:
    """A cut of rectangles side by side.

    Attributes:
        cells: Index of the device, row0, row1, col0, col1 of each tile, ``(tiles, 5)``; columns
            count from the first of the tile's own rectangle.
        slab: Which rectangle each tile belongs to, ``(tiles,)``.
        makespan_s: When the last device is done.
        bound_s: No cut for these devices can be done sooner.
    """

    cells: Ints
    slab: Ints
    makespan_s: float
    bound_s: float


def numbers_of_slabs(
    sizes: tuple[int, int, int], fleet: FleetArrays, n_devices: int
) -> tuple[int, ...]:
    """Numbers of slabs of a product's inner axis, 2 or more, that may pay; none for few devices.

    The cheapest cell of a volume V has ``m = n = (2 V U / D)^(1/3)``: then downlink and uplink are
    busy for the same time. Numbers around that are worth trying.

    Args:
        sizes: m, n and k.
        fleet: The devices, or some that stand for all.
        n_devices: How many there are.
    """
    m, n, k = sizes
    if n_devices < FEWEST_FOR_SLABS or min(sizes) == 0:
        return ()
    volume = m * n * k / n_devices
    ratio = float((fleet.uplink_bytes_per_s / fleet.downlink_bytes_per_s).mean())
    side = min((2 * volume * ratio) ** (1 / 3), m, n)
    best = k / max(1.0, volume / side**2) if math.isfinite(side) else 1.0
    near = {round(best * factor) for factor in (0.5, 0.75, 1.0, 1.5)}
    return tuple(sorted(count for count in near if 2 <= count <= min(n_devices, k)))


def cut_slabs(
    form: CostForm,
    fleet: FleetArrays,
    sides: tuple[int, int],
    quanta: tuple[int, int] = (1, 1),
    *,
    n_slabs: int,
    is_held: bool = False,
) -> SlabCut:
    """Rectangles of equal sides, each cut among a group of devices; groups can do about the same.

    Args:
        form: What a tile of any of them costs.
        fleet: Who may take part.
        sides: Rows and columns of one rectangle.
        quanta: Tiles begin at multiples of this many rows and columns.
        n_slabs: How many rectangles there are; at most as many as devices.
        is_held: Whether what a device does stays in its memory.

    Raises:
        PlanError: If there are fewer devices than rectangles, or memory forbids it.
    """
    smallest = tile_cost(form.memory, min(quanta[0], sides[0]), min(quanta[1], sides[1]))
    roomy = np.flatnonzero(fleet.memory_bytes >= smallest)
    if not len(roomy):
        raise too_small(smallest, float(fleet.memory_bytes.max()))
    if len(roomy) < n_slabs:
        raise PlanError(
            f"{n_slabs} devices are needed that lend {format_bytes(smallest)} each, "
            f"but there are {len(roomy)}",
            LEND_MORE,
        )
    able = fleet.take(roomy)
    lower = lower_bound_held_s if is_held else lower_bound_s
    bound_s = lower(form, able, sides[0], sides[1] * n_slabs)
    if n_slabs == 1:
        cells = (cut_held if is_held else cut)(form, able, sides, quanta).cells
        slabs = np.zeros(len(cells), dtype=np.int64)
    else:
        rectangle = _Rectangle(form, sides, quanta, is_held)
        cells, slabs = _cut_groups(rectangle, able, n_slabs, bound_s)
    cells[:, 0] = roomy[cells[:, 0]]
    return SlabCut(
        cells=cells, slab=slabs, makespan_s=makespan_s(form, fleet, cells), bound_s=bound_s
    )


@dataclass(frozen=True, slots=True)
class _Rectangle:
    """One of the rectangles side by side, which are all alike."""

    form: CostForm
    sides: tuple[int, int]
    quanta: tuple[int, int]
    is_held: bool

    def capacity(self, fleet: FleetArrays, time_s: float) -> Floats:
        """Area that each device can do in a time, ``(devices,)``."""
        area = area_within(self.form, fleet, *self.sides, time_s)
        if self.is_held:
            return np.minimum(area, tile_area_limit(self.form, fleet, *self.sides))
        return area

    def cut(self, fleet: FleetArrays, groups: list[Ints], time_s: float) -> list[Ints]:
        """A cut among each group, which can do all of it in about this time.

        Crowds are cut into columns all in one go, as there may be many; of equal groups only one.
        """
        alike: dict[tuple[Rates, ...], list[Ints]] = {}
        for group in groups:
            alike.setdefault(tuple(fleet.take(group).rates()), []).append(group)
        firsts = [each[0] for each in alike.values()]
        cuts: list[Ints | None] = [None] * len(firsts)
        if not self.is_held and self.quanta == (1, 1) and min(map(len, firsts)) >= _CROWD:
            areas = self.capacity(fleet, time_s)
            cuts = cut_columns_each(self.form, fleet, areas, time_s, self.sides, firsts)
        found: list[Ints] = []
        for equals, cells in zip(alike.values(), cuts, strict=True):
            first = equals[0]
            if cells is None or makespan_s(self.form, fleet, cells) > _GOOD * time_s:
                cells = self._cut_alone(fleet.take(first))
                cells[:, 0] = first[cells[:, 0]]
            place = np.searchsorted(first, cells[:, 0])
            for group in equals:
                cells = cells.copy()
                cells[:, 0] = group[place]
                found.append(cells)
        return found

    def _cut_alone(self, fleet: FleetArrays) -> Ints:
        form, sides, quanta = self.form, self.sides, self.quanta
        return (cut_held if self.is_held else cut)(form, fleet, sides, quanta).cells


def _cut_groups(
    rectangle: _Rectangle, fleet: FleetArrays, n_slabs: int, bound_s: float
) -> tuple[Ints, Ints]:
    """Tiles, and the slab of each."""
    sides = (rectangle.sides[0], rectangle.sides[1] * n_slabs)
    alone = share(rectangle.form, fleet, sides, bound_s)
    place = np.flatnonzero(np.isin(fleet.device_id, alone.device_id))
    capacity = rectangle.capacity(alone, bound_s)
    found = rectangle.cut(alone, even_groups(capacity, n_slabs), bound_s)
    cells = np.concatenate(found)
    cells[:, 0] = place[cells[:, 0]]
    return cells, np.repeat(np.arange(n_slabs), [len(each) for each in found])


def even_groups(capacity: Floats, n_groups: int) -> list[Ints]:
    """Devices in groups whose capacities add up to about the same: largest first, to the emptiest.

    Args:
        capacity: Of each device, ``(devices,)``; those of none are in no group.
        n_groups: How many.

    Raises:
        PlanError: If fewer devices than groups can do anything.
    """
    order = np.argsort(-capacity, kind="stable")
    order = order[capacity[order] > 0]
    if len(order) < n_groups:
        raise PlanError(f"{n_groups} groups need as many devices, but only {len(order)} can help")
    members: list[list[int]] = [[] for _ in range(n_groups)]
    emptiest = [(0.0, group) for group in range(n_groups)]
    for device in order.tolist():
        filled, group = emptiest[0]
        members[group].append(device)
        heapq.heapreplace(emptiest, (filled + float(capacity[device]), group))
    return [np.array(sorted(each), dtype=np.int64) for each in members]
