"""Cuts where what a device does stays in its memory: no more than it can hold at once.

Held weights and activations are not read one tile after the other: all that a device is given must
be there together. Memory is concave in the area of a tile like every other cost, so several tiles
need at least the room of one of the same area, and one tile per device is the best there is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cleave.core.planning.bound import lower_bound_s, tile_area_limit
from cleave.core.planning.cost import CostForm, FleetArrays, Floats, makespan_s, tile_cost
from cleave.core.planning.partition import Cut, cut
from cleave.core.planning.reasons import LEND_MORE, too_small
from cleave.errors import PlanError
from cleave.units import format_factor, format_number

_FILLS = (1.0, 0.9, 0.75, 0.55)  # how much of its memory a device is given, by turns
_SMALLEST = 1e-30  # stands for zero where zero would be divided by


def cut_held(
    form: CostForm, fleet: FleetArrays, sides: tuple[int, int], quanta: tuple[int, int] = (1, 1)
) -> Cut:
    """As `cleave.core.planning.partition.cut`, with all tiles of a device in memory together.

    Raises:
        PlanError: If the devices together cannot hold the rectangle.
    """
    smallest = tile_cost(form.memory, min(quanta[0], sides[0]), min(quanta[1], sides[1]))
    roomy = np.flatnonzero(fleet.memory_bytes >= smallest)
    if not len(roomy):
        raise too_small(smallest, float(fleet.memory_bytes.max()))
    able = fleet.take(roomy)
    bound_s = lower_bound_held_s(form, able, *sides)
    for fill in _FILLS:
        try:
            found = cut(form, _slowed(form, able, sides, fill), sides, quanta, once=True)
        except PlanError:
            continue
        finish_s = makespan_s(form, able, found.cells)
        cells = found.cells.copy()
        cells[:, 0] = roomy[cells[:, 0]]
        return Cut(cells, finish_s, bound_s)
    raise PlanError(
        f"what is to stay on the devices does not fit the memory of "
        f"{format_number(len(able), 'device')}, as whole tiles leave too much unused"
    )


def lower_bound_held_s(form: CostForm, fleet: FleetArrays, n_rows: int, n_cols: int) -> float:
    """The time in which no plan can finish the rectangle, if what devices do stays with them.

    Raises:
        PlanError: If the devices together cannot hold the rectangle.
    """
    return lower_bound_s(form, fleet, n_rows, n_cols, _room(form, fleet, (n_rows, n_cols), 1.0))


def _room(form: CostForm, fleet: FleetArrays, sides: tuple[int, int], fill: float) -> Floats:
    """Cells that each device can hold in this share of its memory."""
    room = tile_area_limit(form, replace(fleet, memory_bytes=fill * fleet.memory_bytes), *sides)
    n_cells = float(sides[0] * sides[1])
    if room.sum() < n_cells:
        raise PlanError(
            f"what is to stay on the devices fills {format_factor(n_cells / max(room.sum(), 1.0))} "
            f"times the memory of {format_number(len(fleet), 'device')}",
            f"{LEND_MORE}, or use more devices",
        )
    return room


def _slowed(form: CostForm, fleet: FleetArrays, sides: tuple[int, int], fill: float) -> FleetArrays:
    """The fleet, with devices that have more time than room slowed to what they can hold."""
    room = _room(form, fleet, sides, fill)
    time_s = lower_bound_s(form, fleet, *sides, room)
    free_s = np.maximum(time_s - fleet.latency_s, _SMALLEST)
    return replace(fleet, flops_per_s=np.minimum(fleet.flops_per_s, form.flops * room / free_s))
