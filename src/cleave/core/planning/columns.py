"""A near-best cut into columns for any number of devices.

Devices in order of what they can do are grouped into columns, so that tiles have about the shape
in which they are cheapest (Beaumont et al. 2001, "Matrix multiplication on heterogeneous
platforms"). Newton's method then finds the widths, the heights inside each column, and the time
with which all finish together; sides are rounded last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from cleave.core.planning.cost import CostForm, FleetArrays, Floats, Ints, makespan_s

WIDTHS = (1.0, 0.8, 1.25, 0.6, 1.6, np.inf)  # tried, as multiples of the cheapest
_STEPS = 2  # of Newton's method, after which a grouping is judged
_MORE_STEPS = 3  # for those that are rounded
_ROUNDED = 3  # the most promising groupings
_SMALLEST = 1e-30  # stands for zero where zero would be divided by


def cut_columns(
    form: CostForm,
    slots: FleetArrays,
    areas: Floats,
    time_s: float,
    sides: tuple[int, int],
    widths: Sequence[float] = WIDTHS,
) -> Ints | None:
    """Slot, row0, row1, col0 and col1 of each tile; None if no such cut fits the slots' memory.

    Args:
        form: Cost of a tile by its sides in quanta.
        slots: What may do one tile each.
        areas: What each slot can do in ``time_s``, in cells; more than 0.
        time_s: About the makespan to expect.
        sides: Rows and columns of the rectangle in quanta.
        widths: Of columns to try, as multiples of the cheapest; infinity for a single column.

    Returns:
        ``(tiles, 5)``.
    """
    order = np.argsort(-areas, kind="stable")
    slots, areas = slots.take(order), areas[order] * (sides[0] * sides[1] / areas.sum())
    upright = list(_groupings(form, slots, areas, time_s, sides, widths))
    turned = list(_groupings(form.transposed, slots, areas, time_s, sides[::-1], widths))
    cuts: list[Ints] = []
    for columns in sorted(upright + turned, key=lambda columns: columns.time_s):
        columns.balance(_MORE_STEPS)
        cells = columns.cells()
        if cells is not None:
            cuts.append(cells if columns in upright else cells[:, [0, 3, 4, 1, 2]])
            if len(cuts) == _ROUNDED:
                break
    if not cuts:
        return None
    best = min(cuts, key=lambda cells: makespan_s(form, slots, cells))
    best[:, 0] = order[best[:, 0]]
    return best


def _groupings(
    form: CostForm,
    slots: FleetArrays,
    areas: Floats,
    time_s: float,
    sides: tuple[int, int],
    widths: Sequence[float],
) -> Iterator[_Columns]:
    """Columns of several widths, nearly balanced."""
    preferred = _preferred_widths(form, slots, areas, sides[1])
    reach = np.concatenate(([0.0], np.cumsum(areas))).tolist()
    seen: set[tuple[int, ...]] = set()
    for scale in widths:
        starts = _group(np.maximum(preferred * scale, 1.0).tolist(), reach, sides)
        if starts not in seen:
            seen.add(starts)
            columns = _Columns(form, slots, np.array(starts), sides, time_s)
            columns.widths = np.add.reduceat(areas, starts) / sides[0]
            columns.balance(_STEPS)
            yield columns


class _Columns:
    """Slots grouped into columns.

    Args:
        form: Cost of a tile by its sides in quanta.
        slots: In order, column by column.
        starts: The first slot of each column.
        sides: What the heights of each column add up to, and what the widths do.
        time_s: About the makespan to expect.
    """

    def __init__(
        self,
        form: CostForm,
        slots: FleetArrays,
        starts: Ints,
        sides: tuple[int, int],
        time_s: float,
    ) -> None:
        self._form = form
        self._slots = slots
        self._starts = starts
        self._n_rows, self._n_cols = sides
        self._index = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(slots))))
        self._s_per_col = np.zeros(len(starts))
        self.widths = np.full(len(starts), self._n_cols / len(starts))
        self.time_s = time_s

    def balance(self, n_steps: int) -> None:
        """Bring widths and time nearer to where all columns finish together.

        Rows r of a column in time T at width w are to be ``n_rows``, and widths to add up to
        ``n_cols``: ``r + (dr/dw) * dw + (dr/dT) * dT = n_rows`` for each column gives each dw by
        dT, and their sum gives dT.
        """
        for _ in range(n_steps):
            limits = _Heights(self._form, self._slots, self.widths[self._index], self._n_rows)
            heights, by_width, by_time = limits.slopes(self.time_s)
            missing = self._n_rows - self._sum(heights)
            row_per_col = np.minimum(self._sum(by_width), -_SMALLEST)
            self._s_per_col = -row_per_col / np.maximum(self._sum(by_time), _SMALLEST)
            cols_missing = self._n_cols - self.widths.sum()
            cols_per_s = (1 / np.maximum(self._s_per_col, _SMALLEST)).sum()
            later_s = (cols_missing - (missing / row_per_col).sum()) / cols_per_s
            later_s = float(np.clip(later_s, -self.time_s / 2, self.time_s))
            change = missing / row_per_col + later_s / np.maximum(self._s_per_col, _SMALLEST)
            self.widths = np.clip(self.widths + change, self.widths / 2, self.widths * 2)
            self.time_s += later_s

    def cells(self) -> Ints | None:
        """The tiles with whole sides, ``(tiles, 5)``; None if no whole heights fit the memory."""
        whole = self._rounded()
        heights = self._heights(whole)
        if heights is None:
            return None
        col1 = np.cumsum(whole).astype(np.int64)[self._index]
        col0 = col1 - whole.astype(np.int64)[self._index]
        row0 = np.cumsum(heights) - heights - self._index * self._n_rows
        slot = np.arange(len(heights))
        return np.stack([slot, row0, row0 + heights, col0, col1], axis=1)[heights > 0]

    def _rounded(self) -> Floats:
        """Whole widths, at least 1, that add up to ``n_cols``; fast columns are rounded up."""
        widths = self.widths * (self._n_cols / self.widths.sum())
        whole = np.maximum(np.floor(widths), 1.0)
        while (surplus := int(whole.sum()) - self._n_cols) > 0:
            widest = np.argsort(-whole, kind="stable")[:surplus]
            whole[widest] -= whole[widest] > 1
        missing = self._n_cols - int(whole.sum())
        if missing:
            later_s = self._s_per_col * (whole + 1 - widths)
            whole[np.argsort(later_s, kind="stable")[:missing]] += 1
        return np.asarray(whole)

    def _heights(self, widths: Floats) -> Ints | None:
        """Whole heights that fill each column and finish soonest; None if memory forbids."""
        limits = _Heights(self._form, self._slots, widths[self._index], self._n_rows)
        if (self._sum(np.floor(limits.most)) < self._n_rows).any():
            return None

        def short(times_s: Floats) -> npt.NDArray[np.bool_]:
            rows = self._sum(np.floor(limits.within(times_s[self._index])))
            return np.asarray(rows < self._n_rows)

        low_s = np.zeros(len(self._starts))
        high_s = np.full(len(self._starts), self.time_s)
        step_s = 0.01 * self.time_s
        while (late := short(high_s)).any():
            low_s, high_s = np.where(late, high_s, low_s), np.where(late, high_s + step_s, high_s)
            step_s *= 2
        while (high_s - low_s > 1e-4 * high_s).any():
            middle_s = (low_s + high_s) / 2
            late = short(middle_s)
            low_s, high_s = np.where(late, middle_s, low_s), np.where(late, high_s, middle_s)
        heights = np.floor(limits.within(high_s[self._index]))
        return self._trimmed(heights.astype(np.int64))

    def _trimmed(self, heights: Ints) -> Ints:
        """The heights less what is too much, taken from the last slots of each column."""
        ends = np.cumsum(heights)
        before = ends - heights
        base = before[self._starts][self._index]
        top = np.minimum(before - base, self._n_rows)
        return np.minimum(ends - base, self._n_rows) - top

    def _sum(self, values: Floats) -> Floats:
        return np.asarray(np.add.reduceat(values, self._starts))


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

    def within(self, times_s: Floats | float) -> Floats:
        """Rows that each slot can do by its time."""
        heights = self.most
        for slope, fixed, _, _, _ in self._lines:
            heights = np.minimum(heights, slope * times_s - fixed)
        return np.maximum(heights, 0.0)

    def slopes(self, time_s: float) -> tuple[Floats, Floats, Floats]:
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
