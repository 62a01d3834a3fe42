"""Cuts one device's tile into strips, so that sending, computing and returning overlap."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cleave.core.device import DeviceProfile
from cleave.core.matrix import DType, Region
from cleave.core.planning.cost import CostForm, Terms
from cleave.core.planning.reasons import LEND_MORE
from cleave.core.work import Work
from cleave.errors import PlanError
from cleave.units import format_bytes

_MAX_STRIPS = 8
_STRIPS_HELD = 3  # of a tile at once
_WORTHWHILE = 0.99  # a further strip must bring all back at least this much sooner


def strips(
    tile: Region, form: CostForm, device: DeviceProfile, *, work: Work, target_s: float
) -> tuple[Region, ...]:
    """Parts of a tile, each to be a task of its own, cut so that all of it is back soonest.

    Inputs that all strips share travel with the first and stay; results that every strip returns
    whole travel once per strip. Where that costs more than the overlap saves the tile stays whole.

    Args:
        tile: What to cut.
        form: What a tile costs.
        device: Who does it.
        work: Gives the quanta and the element type.
        target_s: Every strip keeps link or processor busy at least so long; at most 8 are made.

    Raises:
        PlanError: If the device cannot hold the smallest part of the tile.
    """
    if tile.area == 0:
        return (tile,)
    needed_bytes = form.memory_bytes(tile.n_rows, tile.n_cols)
    if needed_bytes <= device.memory_bytes:
        return _soonest(tile, form, device, work, target_s)
    parts = [
        part
        for half in _halves(tile, form, work)
        for part in strips(half, form, device, work=work, target_s=target_s)
    ]
    if not parts:
        raise PlanError(
            f"the smallest tile of {work.name} needs {format_bytes(needed_bytes)}, device "
            f"{device.name or device.device_id} lends {format_bytes(device.memory_bytes)}",
            LEND_MORE,
        )
    return tuple(parts)


def strips_time_s(
    form: CostForm, tile: Region, device: DeviceProfile, *, dtype: DType, n_strips: int
) -> float:
    """When the last of equal strips along the rows of a tile is back, round trip included.

    What all strips need travels first. Then links and processor each do one strip after the other:
    the longest of sending, computing and returning all, and one strip's worth of the other two.
    Many strips come near ``latency + max(down, compute, up)``; a single one takes their sum.

    References:
        docs/planner.md, the cost of a tile.
    """
    flow = _Flow.of(form, tile.n_rows, tile.n_cols, device, device.flops_per_s[dtype])
    return device.latency_s + flow.finish_s(n_strips)


def strips_memory_bytes(form: CostForm, tile: Region, n_strips: int) -> int:
    """What equal strips along the rows of a tile hold at once, never more than the whole tile.

    That is what all of them need, and three strips: one comes in, one is computed, one returns.
    """
    shared, by_rows = _split(form.memory, tile.n_rows, tile.n_cols)
    height = -(-tile.n_rows // n_strips)
    held = min(_STRIPS_HELD * height, tile.n_rows)
    return math.ceil(shared + by_rows * held / max(tile.n_rows, 1))


def _soonest(
    tile: Region, form: CostForm, device: DeviceProfile, work: Work, target_s: float
) -> tuple[Region, ...]:
    m, n = tile.n_rows, tile.n_cols
    row_quanta, col_quanta = -(-m // work.row_quantum), -(-n // work.col_quantum)
    by_rows = _Flow.of(form, m, n, device, device.flops_per_s[work.dtype])
    by_cols = _Flow.of(form.transposed, n, m, device, device.flops_per_s[work.dtype])
    best_s, best_rows, best_cols = by_rows.finish_s(1), 1, 1
    for n_strips in range(2, _MAX_STRIPS + 1):
        if by_rows.shortest_s(n_strips, row_quanta) >= target_s:
            finish_s = by_rows.finish_s(n_strips)
            if finish_s < best_s * _WORTHWHILE:
                best_s, best_rows, best_cols = finish_s, n_strips, 1
        if by_cols.shortest_s(n_strips, col_quanta) >= target_s:
            finish_s = by_cols.finish_s(n_strips)
            if finish_s < best_s * _WORTHWHILE:
                best_s, best_rows, best_cols = finish_s, 1, n_strips
    return tuple(
        Region(row0, row1, col0, col1)
        for row0, row1 in _spans(tile.row0, tile.row1, work.row_quantum, best_rows)
        for col0, col1 in _spans(tile.col0, tile.col1, work.col_quantum, best_cols)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flow:
    """Seconds that strips of a tile take on a device: what is due once, per strip, and in all."""

    shared_down_s: float
    down_s: float
    compute_s: float
    each_up_s: float
    up_s: float

    @classmethod
    def of(cls, form: CostForm, m: int, n: int, device: DeviceProfile, flops_per_s: float) -> _Flow:
        """Of a tile of ``m x n`` that is cut along its rows."""
        shared_down, down = _split(form.down, m, n)
        each_up, up = _split(form.up, m, n)
        return cls(
            shared_down_s=shared_down / device.downlink_bytes_per_s,
            down_s=down / device.downlink_bytes_per_s,
            compute_s=form.flops * m * n / flops_per_s,
            each_up_s=each_up / device.uplink_bytes_per_s,
            up_s=up / device.uplink_bytes_per_s,
        )

    def finish_s(self, n_strips: int) -> float:
        """When the last strip is back, if links and processor each do one after the other."""
        up_s = self.each_up_s * n_strips + self.up_s
        all_s = self.down_s + self.compute_s + up_s
        slowest_s = max(self.down_s, self.compute_s, up_s)
        return self.shared_down_s + (all_s + (n_strips - 1) * slowest_s) / n_strips

    def shortest_s(self, n_strips: int, n_quanta: int) -> float:
        """How long the smallest of so many strips keeps link or processor busy; 0 for none."""
        share = n_quanta // n_strips / n_quanta
        return max(self.down_s, self.compute_s, self.up_s) * share


def _split(terms: Terms, m: int, n: int) -> tuple[float, float]:
    """Cost of a tile that does not depend on its rows, and cost that is in proportion to them."""
    c0, c1, c2, c3 = terms
    return c0 + c2 * n, (c1 + c3 * n) * m


def _halves(tile: Region, form: CostForm, work: Work) -> tuple[Region, ...]:
    """The tile cut in two where that leaves the least memory; nothing if it is one quantum."""
    cuts = []
    rows = _spans(tile.row0, tile.row1, work.row_quantum, 2)
    cols = _spans(tile.col0, tile.col1, work.col_quantum, 2)
    if len(rows) == 2:
        cuts.append(tuple(Region(*span, tile.col0, tile.col1) for span in rows))
    if len(cols) == 2:
        cuts.append(tuple(Region(tile.row0, tile.row1, *span) for span in cols))
    return min(
        cuts,
        key=lambda cut: max(form.memory_bytes(part.n_rows, part.n_cols) for part in cut),
        default=(),
    )


def _spans(start: int, stop: int, quantum: int, n_parts: int) -> list[tuple[int, int]]:
    """``start:stop`` in parts as equal as quanta allow, fewer if there are not enough of these."""
    n_quanta = -(-(stop - start) // quantum)
    n_parts = min(n_parts, n_quanta)
    edges = [start + quantum * (part * n_quanta // n_parts) for part in range(n_parts)]
    return list(zip(edges, [*edges[1:], stop], strict=True))
