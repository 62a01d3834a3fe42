"""A near-best cut into columns for any number of devices.

Devices in order of what they can do are grouped into columns, so that tiles have about the shape
in which they are cheapest (Beaumont et al. 2001, "Matrix multiplication on heterogeneous
platforms"). Newton's method then finds the widths, the heights inside each column, and the time
with which all finish together; sides are rounded last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cleave.core.planning.cost import CostForm, FleetArrays, Floats, Ints, tiles_time_s

WIDTHS = (1.0, 0.8, 1.25, 0.6, 1.6, np.inf)  # tried, as multiples of the cheapest
_STEPS = 2  # of Newton's method, after which a grouping is judged
_MORE_STEPS = 3  # for those that are rounded
_ROUNDED = 3  # the most promising groupings
_SMALLEST = 1e-30  # stands for zero where zero would be divided by


def cut_columns(
    form: CostForm, slots: FleetArrays, areas: Floats, time_s: float, sides: tuple[int, int]
) -> Ints | None:
    """As `cut_columns_each` of one rectangle and all slots."""
    return cut_columns_each(form, slots, areas, time_s, sides, [np.arange(len(slots))])[0]


def cut_columns_each(
    form: CostForm,
    slots: FleetArrays,
    areas: Floats,
    time_s: float,
    sides: tuple[int, int],
    groups: Sequence[Ints],
) -> list[Ints | None]:
    """Equal rectangles, each cut among slots of its own; all in one go, as there may be many.

    Args:
        form: Cost of a tile by its sides in quanta.
        slots: What may do one tile each, with lines of their own.
        areas: What each slot can do in ``time_s``, in cells; more than 0.
        time_s: About the makespan to expect.
        sides: Rows and columns of a rectangle in quanta.
        groups: The slots of each rectangle.

    Returns:
        Slot, row0, row1, col0 and col1 of each tile, ``(tiles, 5)``, of each rectangle; None where
        no such cut fits the slots' memory.
    """
    order = np.concatenate([group[np.argsort(-areas[group], kind="stable")] for group in groups])
    n_slots = np.array([len(group) for group in groups])
    n_cells = sides[0] * sides[1]
    whole = np.concatenate([areas[group] * (n_cells / areas[group].sum()) for group in groups])
    areas = np.empty(len(slots))
    areas[np.concatenate(groups)] = whole
    ranked = _Ranked(slots.take(order), areas[order], n_slots, time_s)
    ways = [
        *_groupings(form, ranked, sides, is_turned=False),
        *_groupings(form.transposed, ranked, sides[::-1], is_turned=True),
    ]
    ranks = np.argsort(np.argsort([way.times_s for way in ways], axis=0, kind="stable"), axis=0)
    best_s = np.full(len(groups), np.inf)
    best: list[Ints | None] = [None] * len(groups)
    n_found = np.zeros(len(groups), dtype=np.int64)
    for is_tried in (ranks < _ROUNDED, ranks >= _ROUNDED):
        for way, mine in zip(ways, is_tried & (n_found < _ROUNDED), strict=True):
            which = np.flatnonzero(mine & np.isfinite(way.times_s))
            for rectangle, makespan_s, cells in way.rounded(which):
                n_found[rectangle] += 1
                if makespan_s < best_s[rectangle]:
                    best_s[rectangle], best[rectangle] = makespan_s, cells
    for found in best:
        if found is not None:
            found[:, 0] = order[found[:, 0]]
    return best


@dataclass(frozen=True, slots=True, eq=False)
class _Ranked:
    """Slots, rectangle by rectangle, those that can do most first.

    Attributes:
        slots: Of all rectangles.
        areas: What each is to do, in cells.
        n_slots: Of each rectangle.
        time_s: About the makespan to expect.
    """

    slots: FleetArrays
    areas: Floats
    n_slots: Ints
    time_s: float

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The first slot of each rectangle, and one past the last."""
        ends = np.cumsum(self.n_slots)
        return list(zip((ends - self.n_slots).tolist(), ends.tolist(), strict=True))


def _groupings(
    form: CostForm, ranked: _Ranked, sides: tuple[int, int], *, is_turned: bool
) -> Iterator[_Columns]:
    """Columns of several widths, nearly balanced; where one is as another its time is infinite."""
    preferred = _preferred_widths(form, ranked.slots, ranked.areas, sides[1])
    spans = ranked.spans
    reaches = [
        np.concatenate(([0.0], np.cumsum(ranked.areas[first:end]))).tolist() for first, end in spans
    ]
    seen: list[set[tuple[int, ...]]] = [set() for _ in spans]
    for scale in WIDTHS:
        wanted = np.maximum(preferred * scale, 1.0).tolist()
        starts = [
            _group(wanted[first:end], reach, sides)
            for (first, end), reach in zip(spans, reaches, strict=True)
        ]
        is_new = np.array([each not in before for each, before in zip(starts, seen, strict=True)])
        if not is_new.any():
            continue
        for each, before in zip(starts, seen, strict=True):
            before.add(each)
        first_slots = np.concatenate(
            [np.array(each) + first for each, (first, _) in zip(starts, spans, strict=True)]
        )
        columns = _Columns(
            form=form,
            slots=ranked.slots,
            sides=sides,
            is_turned=is_turned,
            n_slots=np.diff(np.append(first_slots, len(ranked.slots))),
            n_columns=np.array([len(each) for each in starts]),
            widths=np.add.reduceat(ranked.areas, first_slots) / sides[0],
            times_s=np.full(len(spans), ranked.time_s),
        )
        columns.balance(_STEPS)
        columns.times_s[~is_new] = np.inf
        yield columns


@dataclass(slots=True, eq=False, kw_only=True)
class _Columns:
    """Slots grouped into columns, and columns into rectangles.

    Attributes:
        form: Cost of a tile by its sides in quanta.
        slots: In order, column by column, rectangle by rectangle.
        sides: What the heights of each column add up to, and the widths of each rectangle.
        is_turned: Whether rows and columns are exchanged.
        n_slots: Of each column.
        n_columns: Of each rectangle.
        widths: Of each column.
        times_s: About the makespan of each rectangle.
    """

    form: CostForm
    slots: FleetArrays
    sides: tuple[int, int]
    is_turned: bool
    n_slots: Ints
    n_columns: Ints
    widths: Floats
    times_s: Floats
    _starts: Ints = field(init=False)  # the first slot of each column
    _firsts: Ints = field(init=False)  # the first column of each rectangle
    _column: Ints = field(init=False)  # of each slot
    _rectangle: Ints = field(init=False)  # of each column
    _s_per_col: Floats = field(init=False)

    def __post_init__(self) -> None:
        """Number columns and rectangles."""
        self._starts = np.cumsum(self.n_slots) - self.n_slots
        self._firsts = np.cumsum(self.n_columns) - self.n_columns
        self._column = np.repeat(np.arange(len(self.n_slots)), self.n_slots)
        self._rectangle = np.repeat(np.arange(len(self.n_columns)), self.n_columns)
        self._s_per_col = np.zeros(len(self.n_slots))

    def balance(self, n_steps: int) -> None:
        """Bring widths and times nearer to where all columns of a rectangle finish together.

        Rows r of a column in time T at width w are to be ``n_rows``, and widths to add up to
        ``n_cols``: ``r + (dr/dw) * dw + (dr/dT) * dT = n_rows`` for each column gives each dw by
        dT, and their sum gives dT.
        """
        n_rows, n_cols = self.sides
        for _ in range(n_steps):
            limits = _Heights(self.form, self.slots, self.widths[self._column], n_rows)
            by_slot_s = self.times_s[self._rectangle][self._column]
            heights, by_width, by_time = limits.slopes(by_slot_s)
            missing = n_rows - self._of_columns(heights)
            row_per_col = np.minimum(self._of_columns(by_width), -_SMALLEST)
            self._s_per_col = -row_per_col / np.maximum(self._of_columns(by_time), _SMALLEST)
            cols_missing = n_cols - self._of_rectangles(self.widths)
            cols_per_s = self._of_rectangles(1 / np.maximum(self._s_per_col, _SMALLEST))
            later_s = (cols_missing - self._of_rectangles(missing / row_per_col)) / cols_per_s
            later_s = np.clip(later_s, -self.times_s / 2, self.times_s)
            change_s = later_s[self._rectangle] / np.maximum(self._s_per_col, _SMALLEST)
            change = missing / row_per_col + change_s
            self.widths = np.clip(self.widths + change, self.widths / 2, self.widths * 2)
            self.times_s = self.times_s + later_s

    def rounded(self, which: Ints) -> Iterator[tuple[int, float, Ints]]:
        """Number, makespan and tiles of these rectangles with whole sides, where memory allows."""
        if not len(which):
            return
        is_mine = np.isin(self._rectangle, which)
        slots = np.flatnonzero(is_mine[self._column])
        part = _Columns(
            form=self.form,
            slots=self.slots.take(slots),
            sides=self.sides,
            is_turned=self.is_turned,
            n_slots=self.n_slots[is_mine],
            n_columns=self.n_columns[which],
            widths=self.widths[is_mine],
            times_s=self.times_s[which],
        )
        part.balance(_MORE_STEPS)
        cells, makespans_s = part._cells()
        cells[:, 0] = slots[cells[:, 0]]
        ends = np.cumsum(part._of_rectangles(part.n_slots))
        if self.is_turned:
            cells = cells[:, [0, 3, 4, 1, 2]]
        for rectangle, makespan_s, own in zip(
            which.tolist(), makespans_s.tolist(), np.split(cells, ends[:-1]), strict=True
        ):
            if makespan_s < np.inf:
                yield rectangle, makespan_s, own[(own[:, 2] > own[:, 1]) & (own[:, 4] > own[:, 3])]

    def _cells(self) -> tuple[Ints, Floats]:
        """A tile for each slot, some of them empty; makespans, infinite if memory forbids."""
        n_rows, n_cols = self.sides
        whole = self._whole_widths()
        limits = _Heights(self.form, self.slots, whole[self._column], n_rows)
        fits = self._of_columns(np.floor(limits.most)) >= n_rows
        heights = self._whole_heights(limits, fits)
        widths = whole.astype(np.int64)
        col1 = (np.cumsum(widths) - self._rectangle * n_cols)[self._column]
        row1 = np.cumsum(heights)
        row1 -= (row1 - heights)[self._starts][self._column]
        cells = np.stack(
            [np.arange(len(heights)), row1 - heights, row1, col1 - widths[self._column], col1],
            axis=1,
        )
        done_s = tiles_time_s(self.form, self.slots, heights, widths[self._column])
        done_s = np.where(heights > 0, done_s, 0.0)
        done_s = np.where(fits[self._column], done_s, np.inf)
        return cells, np.maximum.reduceat(done_s, self._starts[self._firsts])

    def _whole_widths(self) -> Floats:
        """Whole widths, at least 1, that add up to ``n_cols``; fast columns are rounded up."""
        n_cols = self.sides[1]
        scale = n_cols / self._of_rectangles(self.widths)
        widths = self.widths * scale[self._rectangle]
        whole = np.maximum(np.floor(widths), 1.0)
        later_s = self._s_per_col * (whole + 1 - widths)
        for first, count in zip(self._firsts.tolist(), self.n_columns.tolist(), strict=True):
            mine = slice(first, first + count)
            whole[mine] = _filled(whole[mine], later_s[mine], n_cols)
        return whole

    def _whole_heights(self, limits: _Heights, fits: npt.NDArray[np.bool_]) -> Ints:
        """Whole heights that fill each column that fits, and finish soonest."""
        n_rows = self.sides[0]

        def short(times_s: Floats) -> npt.NDArray[np.bool_]:
            rows = self._of_columns(np.floor(limits.within(times_s[self._column])))
            return np.asarray((rows < n_rows) & fits)

        high_s = self.times_s[self._rectangle]
        low_s = np.where(fits, 0.0, high_s)
        step_s = 0.01 * high_s
        while (late := short(high_s)).any():
            low_s, high_s = np.where(late, high_s, low_s), np.where(late, high_s + step_s, high_s)
            step_s *= 2
        while (high_s - low_s > 1e-4 * high_s).any():
            middle_s = (low_s + high_s) / 2
            late = short(middle_s)
            low_s, high_s = np.where(late, middle_s, low_s), np.where(late, high_s, middle_s)
        heights = np.floor(limits.within(high_s[self._column]))
        return self._trimmed(heights.astype(np.int64))

    def _trimmed(self, heights: Ints) -> Ints:
        """The heights less what is too much, taken from the last slots of each column."""
        ends = np.cumsum(heights)
        before = ends - heights
        base = before[self._starts][self._column]
        top = np.minimum(before - base, self.sides[0])
        return np.minimum(ends - base, self.sides[0]) - top

    def _of_columns(self, values: Floats) -> Floats:
        """Sums over the slots of each column."""
        return np.asarray(np.add.reduceat(values, self._starts))

    def _of_rectangles(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sums over the columns of each rectangle."""
        return np.asarray(np.add.reduceat(values, self._firsts))


def _filled(whole: Floats, later_s: Floats, n_cols: int) -> Floats:
    """Whole widths of at least 1 changed by whole columns until they add up to ``n_cols``."""
    while (surplus := int(whole.sum()) - n_cols) > 0:
        widest = np.argsort(-whole, kind="stable")[:surplus]
        whole[widest] -= whole[widest] > 1
    missing = n_cols - int(whole.sum())
    if missing:
        whole[np.argsort(later_s, kind="stable")[:missing]] += 1
    return whole


class _Heights:
    """Rows of given widths that slots can do: the least of lines in time and of memory."""

    def __init__(self, form: CostForm, slots: FleetArrays, widths: Floats, n_rows: int) -> None:
        self._lines: list[tuple[Floats, Floats, Floats, float, float]] = []
        for rate, (c0, c1, c2, c3) in (
            (slots.downlink_bytes_per_s, form.down),
            (slots.uplink_bytes_per_s, form.up),
            (slots.flops_per_s, (0.0, 0.0, 0.0, form.flops)),
        ):
            if c0 or c1 or c2 or c3:
                row = np.maximum(c1 + c3 * widths, _SMALLEST)
                fixed = (slots.latency_s * rate + (c0 + c2 * widths)) / row
                self._lines.append((rate / row, fixed, row, c2, c3))
        r0, r1, r2, r3 = form.memory
        row = np.maximum(r1 + r3 * widths, _SMALLEST)
        room = (slots.memory_bytes - (r0 + r2 * widths)) / row
        self._memory = room, row, r2, r3
        self.most = np.clip(room, 0.0, n_rows)

    def within(self, times_s: Floats) -> Floats:
        """Rows that each slot can do by its time."""
        heights = self.most
        for slope, fixed, _, _, _ in self._lines:
            heights = np.minimum(heights, slope * times_s - fixed)
        return np.maximum(heights, 0.0)

    def slopes(self, time_s: Floats) -> tuple[Floats, Floats, Floats]:
        """Rows that each slot can do by a time, and their change with its width and with time."""
        heights, row, c2, c3 = self._memory
        by_width, by_time = -(c2 + c3 * heights) / row, np.zeros(len(heights))
        for slope, fixed, row, c2, c3 in self._lines:
            rows = slope * time_s - fixed
            binds = rows < heights
            heights = np.where(binds, rows, heights)
            by_width = np.where(binds, -(c2 + c3 * rows) / row, by_width)
            by_time = np.where(binds, slope, by_time)
        works = heights > 0
        return heights * works, by_width * works, by_time * works


def _preferred_widths(form: CostForm, slots: FleetArrays, areas: Floats, n_cols: int) -> Floats:
    """The widths with which tiles of these areas take the least time for their sides."""
    by_row = form.down[1] / slots.downlink_bytes_per_s + form.up[1] / slots.uplink_bytes_per_s
    by_col = form.down[2] / slots.downlink_bytes_per_s + form.up[2] / slots.uplink_bytes_per_s
    free = (by_row == 0) & (by_col == 0)
    ratio = np.where(free, 1.0, by_row / np.maximum(by_col, _SMALLEST))
    return np.clip(np.sqrt(areas * ratio), 1.0, n_cols)


def _group(widths: list[float], reach: list[float], sides: tuple[int, int]) -> tuple[int, ...]:
    """The first slot of each column, when columns are filled until they are as wide as wanted."""
    n_slots = len(widths)
    starts = [0]
    while starts[-1] < n_slots:
        first = starts[-1]
        end = bisect_left(reach, reach[first] + sides[0] * widths[first])
        starts.append(min(max(end, first + 1), n_slots))
    starts.pop()
    if (
        len(starts) > 1
        and reach[-1] - reach[starts[-1]] < (reach[starts[-1]] - reach[starts[-2]]) / 2
    ):
        starts.pop()
    return tuple(starts[: sides[1]])
