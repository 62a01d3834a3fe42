"""Cuts into equal tiles, many per device: for more than the devices can hold at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cleave.core.planning.cost import CostForm, FleetArrays, Floats, Ints, tile_cost

_MEMORIES = (0.0, 0.25, 0.5, 0.75, 1.0)  # quantiles of the devices' memory that a tile may fill
_FILLS = (1.0, 0.5, 0.25)  # how much of it: smaller tiles are shared out more evenly
_NEAR = 1.02  # of cuts that are done about as soon the one with the fewest tiles is taken
_SMALLEST = 1e-30  # stands for zero where zero would be divided by


def cut_equally(form: CostForm, fleet: FleetArrays, sides: tuple[int, int]) -> Ints:
    """Device index, row0, row1, col0 and col1 of each tile: the best of several sizes and shapes.

    A device does its tiles one after the other, and they are neighbours: what they share need not
    be sent again.

    Args:
        form: Cost of a tile by its sides in quanta.
        fleet: Devices that can each hold a tile of one quantum.
        sides: Rows and columns of the rectangle in quanta.

    Returns:
        ``(tiles, 5)``.
    """
    levels = np.quantile(fleet.memory_bytes, _MEMORIES, method="lower").tolist()
    sizes = dict.fromkeys(
        size for level in levels for fill in _FILLS for size in _sizes(form, fill * level, sides)
    )
    sizes[1, 1] = None
    shares = {size: _shares(form, fleet, size, sides) for size in sizes}
    enough_s = _NEAR * min(finish_s for finish_s, _ in shares.values())
    near = [size for size, (finish_s, _) in shares.items() if finish_s <= enough_s]
    best = max(near, key=lambda size: size[0] * size[1])
    n_tiles = shares[best][1]
    rows, cols = (np.arange(0, side, step) for side, step in zip(sides, best, strict=True))
    if form.down[1] * best[0] > form.down[2] * best[1]:  # neighbours in a row share more
        row0, col0 = (grid.ravel() for grid in np.meshgrid(rows, cols, indexing="ij"))
    else:
        col0, row0 = (grid.ravel() for grid in np.meshgrid(cols, rows, indexing="ij"))
    owner = np.repeat(np.arange(len(fleet)), n_tiles)[: len(row0)]
    row1, col1 = np.minimum(row0 + best[0], sides[0]), np.minimum(col0 + best[1], sides[1])
    return np.stack([owner, row0, row1, col0, col1], axis=1)


def _sizes(
    form: CostForm, memory_bytes: float, sides: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """Sides of tiles that fill the memory, from low and wide to high and narrow."""
    r0, r1, r2, r3 = form.memory
    height = 1
    while height <= sides[0]:
        room = memory_bytes - r0 - r1 * height
        width = min(room / max(r2 + r3 * height, _SMALLEST), sides[1])
        if width >= 1:
            yield _evened(height, sides[0]), _evened(int(width), sides[1])
        height = 2 * height if 2 * height <= sides[0] or height == sides[0] else sides[0]


def _evened(step: int, side: int) -> int:
    """The smallest step that takes no more of them to cover the side."""
    return -(-side // -(-side // step))


def _shares(
    form: CostForm, fleet: FleetArrays, size: tuple[int, int], sides: tuple[int, int]
) -> tuple[float, Ints]:
    """When the last of all tiles of this size is done, and how many each device does."""
    each_s = np.maximum(
        np.maximum(
            tile_cost(form.down, *size) / fleet.downlink_bytes_per_s,
            tile_cost(form.up, *size) / fleet.uplink_bytes_per_s,
        ),
        form.flops * size[0] * size[1] / fleet.flops_per_s,
    )
    fits = form.memory_bytes(*size) <= fleet.memory_bytes
    each_s = np.where(fits, np.maximum(each_s, _SMALLEST), np.inf)
    n_tiles = -(-sides[0] // size[0]) * -(-sides[1] // size[1])

    def done(time_s: float) -> Floats:
        free_s = np.maximum(time_s - fleet.latency_s, 0.0)
        return np.minimum(np.floor(free_s / each_s), n_tiles)

    low_s, high_s = 0.0, float((fleet.latency_s + each_s * n_tiles).min()) * (1 + 1e-9)
    while high_s > low_s * (1 + 1e-6):
        middle_s = (low_s + high_s) / 2
        if done(middle_s).sum() >= n_tiles:
            high_s = middle_s
        else:
            low_s = middle_s
    return high_s, done(high_s).astype(np.int64)
