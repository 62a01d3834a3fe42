"""What a fleet can do in a given time at best, and so the time that no plan can beat."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cleave.core.planning.cost import CostForm, FleetArrays, Floats, Ints, Terms

_SMALLEST = 1e-30  # stands for zero where zero would be divided by
_ROUNDING = 1 + 1e-12  # what lies on the very edge is allowed
_CRUMB = 1e-9  # relative: an area that is left by rounding alone, and needs no tile of its own
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
    # Cost is concave in area, so several tiles cost least if all but one are as large as they can
    # be (see `behind_lines`): for each limit alone, that many and what is left for one more.
    in_tiles: Floats | float = np.inf
    for capacity, terms in limits:
        each = np.maximum(least_cost(terms, tile, n_rows, n_cols), _SMALLEST)
        n_whole = np.minimum(np.floor(capacity / each * _ROUNDING), n_rows * n_cols)
        rest = _largest_area([(np.maximum(capacity - n_whole * each, 0.0), terms)], n_rows, n_cols)
        in_tiles = np.minimum(in_tiles, n_whole * tile + np.minimum(rest, tile))
    return np.where(at_once > tile, np.minimum(at_once, np.maximum(tile, in_tiles)), at_once)


def behind_lines(
    form: CostForm, fleet: FleetArrays, sides: tuple[int, int], areas: Floats, time_s: float
) -> Floats:
    """What is left of areas where the devices of a site share its line; no plan does more there.

    The devices of a site are filled in order of the tiles that they can do, largest first, until
    the bytes of the cheapest shapes fill the line in either direction. No other choice does more.
    Write c(a) for the cost of a tile of a cells in its cheapest shape: c(0) = 0, and c is concave.
    Let the tiles of any plan at the site be sorted by size. Of its k largest, those on a device i
    do at most the sum of the k_i largest into which ``areas`` cuts that device, so all k together
    at most the sum of the k largest of the site: the order above majorises every other with the
    same total, and a sum of a concave function is least for the one that majorises (Karamata).
    Hence a total that costs more than the line carries in this order does so in any, and both the
    total and the order stay the greedy ones: what follows may rely on that again.

    Args:
        form: What a tile costs.
        fleet: ``(devices,)``.
        sides: Rows and columns of the rectangle.
        areas: As of `area_within`, ``(devices,)``.
        time_s: In which the line carries them, after the shortest round trip of its site.

    Returns:
        Cells, ``(devices,)``.
    """
    if not len(fleet.site_downlink_bytes_per_s):
        return areas
    pieces = _Pieces.of(
        areas, tile_area_limit(form, fleet, *sides), np.flatnonzero(fleet.site >= 0)
    )
    pieces = pieces.take(np.lexsort((-pieces.size, fleet.site[pieces.owner])))
    site = fleet.site[pieces.owner]
    free_s = np.maximum(time_s - fleet.first_s_by_site, 0.0)
    done = pieces.area
    for terms, rates in (
        (form.down, fleet.site_downlink_bytes_per_s),
        (form.up, fleet.site_uplink_bytes_per_s),
    ):
        cost = pieces.cost(terms, sides)
        before = np.cumsum(cost) - cost
        starts = np.searchsorted(site, site)  # the first piece of each one's site
        budget = (rates * free_s)[site] - (before - before[starts])
        done = np.minimum(done, pieces.within(terms, sides, budget))
    return np.where(fleet.site >= 0, _summed(pieces.owner, done, len(fleet)), areas)


def covering(
    form: CostForm, fleet: FleetArrays, sides: tuple[int, int], areas: Floats
) -> tuple[Floats, float, float]:
    """The cells of each device where fewest bytes pass the server, and the bytes down and up.

    The fullest tiles do all: as in `behind_lines`, of whose order this is the same over the whole
    fleet, every other choice of tiles within ``areas`` that covers the rectangle costs more.

    Args:
        form: What a tile costs.
        fleet: ``(devices,)``.
        sides: Rows and columns of the rectangle.
        areas: What each device can do at most, ``(devices,)``.
    """
    pieces = _Pieces.of(areas, tile_area_limit(form, fleet, *sides), np.arange(len(fleet)))
    pieces = pieces.take(np.argsort(-pieces.size, kind="stable"))
    before = np.cumsum(pieces.area) - pieces.area
    n_cells = sides[0] * sides[1] * (1 - _CRUMB)
    taken = replace(pieces, area=np.clip(n_cells - before, 0.0, pieces.area))
    return (
        _summed(taken.owner, taken.area, len(fleet)),
        float(taken.cost(form.down, sides).sum()),
        float(taken.cost(form.up, sides).sum()),
    )


def _summed(owner: Ints, values: Floats, n_devices: int) -> Floats:
    return np.bincount(owner, values, minlength=n_devices).astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """Areas cut into tiles that their owners can hold: of ``size`` cells, and what is left over."""

    owner: Ints
    size: Floats
    area: Floats

    @classmethod
    def of(cls, areas: Floats, tile: Floats, devices: Ints) -> _Pieces:
        """The largest tiles into which the areas of ``devices`` can be cut."""
        devices = devices[areas[devices] > 0]
        area = areas[devices]
        size = np.minimum(area, tile[devices])
        whole = np.minimum(np.floor(area / size * _ROUNDING) * size, area)
        rest = np.maximum(area - whole, 0.0)
        more = np.flatnonzero(rest > _CRUMB * area)
        return cls(
            np.concatenate([devices, devices[more]]),
            np.concatenate([size, rest[more]]),
            np.concatenate([whole, rest[more]]),
        )

    def take(self, indices: Ints) -> _Pieces:
        """Those at ``indices``."""
        return _Pieces(self.owner[indices], self.size[indices], self.area[indices])

    def cost(self, terms: Terms, sides: tuple[int, int]) -> Floats:
        """What the cheapest shapes cost."""
        return least_cost_in_tiles(terms, self.area, self.size, *sides)

    def within(self, terms: Terms, sides: tuple[int, int], budget: Floats) -> Floats:
        """How much of each area costs at most its budget."""
        each = np.maximum(least_cost(terms, self.size, *sides), _SMALLEST)
        budget = np.maximum(budget, 0.0)
        n_whole = np.minimum(np.floor(budget / each * _ROUNDING), self.area / self.size)
        rest = _largest_area([(budget - n_whole * each, terms)], *sides)
        return np.minimum(n_whole * self.size + rest, self.area)


def lower_bound_s(
    form: CostForm,
    fleet: FleetArrays,
    n_rows: int,
    n_cols: int,
    most: Floats | float = np.inf,
) -> float:
    """The time in which no plan can finish the rectangle, whatever its tiles; 0 for no cells.

    In less time the devices, each with its own link, arithmetic and memory, and those of a site
    with their line, cannot do all cells; or the server cannot pass the bytes of the plan that needs
    fewest.

    Args:
        form: What a tile costs.
        fleet: The devices, at least one; the lines of sites and of the server.
        n_rows: Rows of the rectangle.
        n_cols: Columns of the rectangle.
        most: Cells that each device can be given at all, ``(devices,)``; together enough.
    """
    area = float(n_rows * n_cols)
    if area == 0:
        return 0.0

    sides = n_rows, n_cols
    tile = tile_area_limit(form, fleet, n_rows, n_cols)
    first_s = float(fleet.latency_s.min())

    def done(times_s: Floats) -> Floats:
        areas = np.minimum(_area_within(form, fleet, sides, times_s[:, None], tile), most)
        if not fleet.shares_lines:
            return np.asarray(areas.sum(axis=1) / area)
        return np.array(
            [
                _done_through_lines(form, fleet, sides, each, float(time_s) - first_s)
                for each, time_s in zip(areas, times_s, strict=True)
            ]
        )

    whole = np.full(1, area)
    start_s = max(
        least_cost(form.down, whole, n_rows, n_cols)[0] / fleet.downlink_bytes_per_s.sum(),
        least_cost(form.up, whole, n_rows, n_cols)[0] / fleet.uplink_bytes_per_s.sum(),
        form.flops * area / fleet.flops_per_s.sum(),
    )
    return first_time_s(done, fleet, float(start_s))


def _done_through_lines(
    form: CostForm, fleet: FleetArrays, sides: tuple[int, int], areas: Floats, free_s: float
) -> float:
    """The share of the work, or of the server's bytes if that is less, done in this time."""
    areas = behind_lines(form, fleet, sides, areas, free_s + float(fleet.latency_s.min()))
    share = float(areas.sum()) / (sides[0] * sides[1])
    if not fleet.has_slow_server:
        return share
    _, down, up = covering(form, fleet, sides, areas)
    egress = fleet.egress_bytes_per_s * free_s / max(down, _SMALLEST)
    ingress = fleet.ingress_bytes_per_s * free_s / max(up, _SMALLEST)
    return min(share, min(share, 1.0) * min(egress, ingress))


def first_time_s(done: Callable[[Floats], Floats], fleet: FleetArrays, start_s: float) -> float:
    """The time before which not all is done, rounded down by at most 0.02 %.

    Args:
        done: The share of all that is done in times ``(n,)``; 1 or more once it is all.
        fleet: The devices; several times are tried at once if they are few and share no line.
        start_s: A time known to be too short, counted from the shortest round trip of the fleet.
    """
    first_s = float(fleet.latency_s.min())
    width = 1 if fleet.shares_lines else max(1, _SEARCH_WIDTH // len(fleet))
    low_s, low = max(start_s, _SMALLEST), 0.0
    high_s, high = np.inf, np.inf
    turn = 0
    while high_s - low_s > _PRECISION * (first_s + low_s):
        if high_s == np.inf:
            tried = low_s * np.exp2(np.arange(1, width + 1) * min(2.0, 4 / width))
        elif width > 1:
            tried = low_s + (high_s - low_s) * np.arange(1, width + 1) / (width + 1)
        else:
            tried = np.full(1, _guess(low_s, low, high_s, high, turn))
            turn += 1
        shares = done(first_s + tried) * _ROUNDING
        hit = int(np.argmax(shares >= 1)) if shares[-1] >= 1 else len(tried)
        if hit < len(tried):
            high_s, high = float(tried[hit]), float(shares[hit])
        if hit > 0:
            low_s, low = float(tried[hit - 1]), float(shares[hit - 1])
    return first_s + low_s


def _guess(low_s: float, low: float, high_s: float, high: float, turn: int) -> float:
    """A time between two, about where all is done, if what is done grows as a power of the time.

    By turns it lies just above that, so that it becomes the new end, just below, and in the middle.
    """
    if low <= 0 or turn % 3 == 2:
        return math.sqrt(low_s * high_s)
    power = math.log(high / low) / math.log(high_s / low_s)
    nudge = 0.4 * _PRECISION * (1 if turn % 3 == 0 else -1)
    guess = low_s * math.exp(-math.log(low) / power) * (1 + nudge)
    return min(max(guess, low_s * (1 + 0.1 * _PRECISION)), high_s * (1 - 0.1 * _PRECISION))


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


def least_cost(
    terms: Terms, area: Floats, n_rows: Floats | float, n_cols: Floats | float
) -> Floats:
    """The cost of one tile of ``area`` cells in the shape for which it is least."""
    c0, c1, c2, c3 = terms
    narrowest = np.maximum(area / n_cols, _SMALLEST)
    cheapest = np.sqrt(area * (c2 / c1)) if c1 else np.full_like(area, n_rows)
    m = np.clip(cheapest, narrowest, n_rows)
    return np.where(area > 0, c0 + c1 * m + c2 * (area / m) + c3 * area, 0.0)


def least_cost_in_tiles(
    terms: Terms, areas: Floats, tile: Floats, n_rows: int, n_cols: int
) -> Floats:
    """The cost of areas in tiles of up to ``tile`` cells, in the shapes for which it is least."""
    size = np.maximum(np.minimum(areas, tile), _SMALLEST)
    n_whole = np.floor(areas / size * _ROUNDING)
    rest = areas - n_whole * size
    rest = np.where(rest > _CRUMB * areas, rest, 0.0)
    whole = n_whole * least_cost(terms, size, n_rows, n_cols)
    return whole + least_cost(terms, rest, n_rows, n_cols)
