"""What a fleet can do in a given time at best, and so the time that no plan can beat."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from cleave.core.planning.cost import CostForm, FleetArrays, Floats, Terms

_SMALLEST = 1e-30  # stands for zero where zero would be divided by
_ROUNDING = 1 + 1e-12  # what lies on the very edge is allowed
_PRECISION = 2e-4  # relative, of a time that is searched for
_SEARCH_WIDTH = 512  # numbers that numpy handles in about the time of one


def tile_area_limit(form: CostForm, fleet: FleetArrays, n_rows: int, n_cols: int) -> Floats:
    """The largest tile that each device can hold, in cells (a fraction of them counts)."""
    return _largest_area([(fleet.memory_bytes, form.memory)], n_rows, n_cols)


def area_within(
    form: CostForm, fleet: FleetArrays, n_rows: int, n_cols: int, time_s: Floats | float
) -> Floats:
    """The largest area that each device can do in ``time_s``: no plan gives it more, in any shape.

    A device that cannot hold so much at once does it as several tiles, as large as it can hold.

    Args:
        form: What a tile costs.
        fleet: ``(devices,)``.
        n_rows: Rows of the whole rectangle; no tile has more.
        n_cols: Columns of the whole rectangle.
        time_s: A number, or ``(times, 1)``.

    Returns:
        Cells, ``(devices,)`` or ``(times, devices)``; a fraction of a cell counts.
    """
    tile = tile_area_limit(form, fleet, n_rows, n_cols)
    return _area_within(form, fleet, (n_rows, n_cols), time_s, tile)


def _area_within(
    form: CostForm,
    fleet: FleetArrays,
    sides: tuple[int, int],
    time_s: Floats | float,
    tile: Floats,
) -> Floats:
    n_rows, n_cols = sides
    free_s = np.maximum(time_s - fleet.latency_s, 0.0)
    limits = [
        (fleet.downlink_bytes_per_s * free_s, form.down),
        (fleet.uplink_bytes_per_s * free_s, form.up),
        (fleet.flops_per_s * free_s, (0.0, 0.0, 0.0, form.flops)),
    ]
    at_once = _largest_area(limits, n_rows, n_cols)
    if np.all(at_once <= tile):
        return at_once
    # Cost is concave in area, so tiles as large as memory allows are the cheapest per cell.
    n_tiles = np.full(at_once.shape, np.inf)
    for capacity, terms in limits:
        cost = _least_cost(terms, tile, n_rows, n_cols)
        n_tiles = np.minimum(n_tiles, capacity / np.maximum(cost, _SMALLEST))
    in_tiles = np.where(tile > 0, np.minimum(n_tiles, n_rows * n_cols) * tile, 0.0)
    return np.where(at_once > tile, np.minimum(at_once, np.maximum(tile, in_tiles)), at_once)


def lower_bound_s(
    form: CostForm,
    fleet: FleetArrays,
    n_rows: int,
    n_cols: int,
    *,
    egress_bytes_per_s: float = math.inf,
    ingress_bytes_per_s: float = math.inf,
) -> float:
    """The time in which no plan can finish the rectangle, whatever its tiles; 0 for no cells.

    Args:
        form: What a tile costs.
        fleet: The devices; at least one.
        n_rows: Rows of the rectangle.
        n_cols: Columns of the rectangle.
        egress_bytes_per_s: What the server can send to all devices together.
        ingress_bytes_per_s: What the server can receive from all together.
    """
    area = n_rows * n_cols
    if area == 0:
        return 0.0

    tile = tile_area_limit(form, fleet, n_rows, n_cols)

    def enough(times_s: Floats) -> npt.NDArray[np.bool_]:
        areas = _area_within(form, fleet, (n_rows, n_cols), times_s[:, None], tile)
        done = areas.sum(axis=1) >= area / _ROUNDING
        for terms, rate in ((form.down, egress_bytes_per_s), (form.up, ingress_bytes_per_s)):
            if math.isfinite(rate):
                done &= _least_traffic(terms, areas, n_rows, n_cols) <= rate * times_s
        return np.asarray(done)

    whole = np.full(1, float(area))
    start_s = max(
        _least_cost(form.down, whole, n_rows, n_cols)[0] / fleet.downlink_bytes_per_s.sum(),
        _least_cost(form.up, whole, n_rows, n_cols)[0] / fleet.uplink_bytes_per_s.sum(),
        form.flops * area / fleet.flops_per_s.sum(),
    )
    return first_time_s(enough, fleet, float(start_s))


def first_time_s(
    enough: Callable[[Floats], npt.NDArray[np.bool_]], fleet: FleetArrays, start_s: float
) -> float:
    """The time before which ``enough`` does not hold, rounded down by at most 0.02 %.

    Args:
        enough: Of times ``(n,)``; once true it stays true for later times.
        fleet: The devices; several times are tried at once if they are few.
        start_s: A time known to be too short, counted from the shortest round trip of the fleet.
    """
    width = max(1, _SEARCH_WIDTH // len(fleet))
    first_s = float(fleet.latency_s.min())
    low_s = max(start_s, _SMALLEST)
    steps: Floats = np.exp2(np.arange(1, width + 1) * min(1.0, 4 / width))
    while not (hits := enough(first_s + low_s * steps)).any():
        low_s *= float(steps[-1])
    tried = low_s * np.concatenate(([1.0], steps))
    index = int(np.argmax(hits))
    low_s, high_s = float(tried[index]), float(tried[index + 1])
    while high_s - low_s > _PRECISION * (first_s + low_s):
        tried = low_s + (high_s - low_s) * np.arange(width + 2) / (width + 1)
        hits = np.append(enough(first_s + tried[1:-1]), True)
        index = int(np.argmax(hits))
        low_s, high_s = float(tried[index]), float(tried[index + 1])
    return first_s + low_s


def _largest_area(limits: Sequence[tuple[Floats, Terms]], n_rows: int, n_cols: int) -> Floats:
    """The largest m * n with every cost within its capacity, m <= n_rows and n <= n_cols.

    For given m the largest n under one limit is ``(capacity - c0 - c1 * m) / (c2 + c3 * m)``, and m
    times that has a single peak. So the largest area under all of them lies at a peak of one, where
    two of them cross, or at an edge of the rectangle.
    """
    best = np.zeros(limits[0][0].shape)
    most: Floats | float = float(n_rows * n_cols)
    shaped: list[tuple[Floats, Terms]] = []
    sides: list[Floats | float] = [float(n_rows)]
    for capacity, terms in limits:
        c0, c1, c2, c3 = terms
        slack = capacity - c0
        if not (c1 or c2):
            if c0 or c3:
                rest = np.maximum(capacity * _ROUNDING - c0, 0.0)
                most = np.minimum(most, rest / max(c3, _SMALLEST))
            continue
        if c1:
            turned = np.maximum(slack, 0.0) * (c2 / c1)
            sides.append((slack - c2 * n_cols) / (c1 + c3 * n_cols))
            sides.append(turned / (c2 + np.sqrt(c2 * c2 + c3 * turned) + _SMALLEST))
        for other in shaped:
            if c1 * other[1][2] != c2 * other[1][1]:
                sides.extend(_crossings((slack, terms), other))
        shaped.append((slack, terms))
    for side in sides:
        m = np.minimum(np.maximum(side, _SMALLEST), n_rows)
        n: Floats | float = float(n_cols)
        for slack, (_, c1, c2, c3) in shaped:
            rest = slack * _ROUNDING - c1 * m
            n = np.minimum(n, rest / np.maximum(c2 + c3 * m, _SMALLEST))
        best = np.maximum(best, m * n)
    return np.minimum(best, most)


def _crossings(limit: tuple[Floats, Terms], other: tuple[Floats, Terms]) -> list[Floats]:
    """The sides m at which two limits allow the same n; some other number where there is none."""
    (slack, a), (other_slack, b) = limit, other
    p2 = b[1] * a[3] - a[1] * b[3]
    p1 = slack * b[3] - a[1] * b[2] - other_slack * a[3] + b[1] * a[2]
    p0 = slack * b[2] - other_slack * a[2]
    root = np.sqrt(np.maximum(p1 * p1 - 4 * p2 * p0, 0.0))
    half = -(p1 + np.copysign(root, p1)) / 2
    divisor = np.where(np.abs(half) < _SMALLEST, _SMALLEST, half)
    return [p0 / divisor, half / p2] if p2 else [p0 / divisor]


def _least_cost(terms: Terms, area: Floats, n_rows: int, n_cols: int) -> Floats:
    """The cost of one tile of ``area`` cells in the shape for which it is least."""
    c0, c1, c2, c3 = terms
    narrowest = np.maximum(area / n_cols, _SMALLEST)
    cheapest = np.sqrt(area * (c2 / c1)) if c1 else np.full_like(area, n_rows)
    m = np.clip(cheapest, narrowest, n_rows)
    return np.where(area > 0, c0 + c1 * m + c2 * (area / m) + c3 * area, 0.0)


def _least_traffic(terms: Terms, areas: Floats, n_rows: int, n_cols: int) -> Floats:
    """The least bytes of any plan: as cost is concave in area, the fullest devices do all.

    Args:
        terms: Cost of a tile.
        areas: What each device can do at most, ``(times, devices)``.
        n_rows: Rows of the rectangle.
        n_cols: Columns of the rectangle.

    Returns:
        ``(times,)``.
    """
    ordered = -np.sort(-areas, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    taken = np.clip(n_rows * n_cols - before, 0.0, ordered)
    return np.asarray(_least_cost(terms, taken, n_rows, n_cols).sum(axis=1))
