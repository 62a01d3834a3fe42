"""A near-best cut into columns for any number of devices.

Devices in order of what they can do are grouped into columns, so that tiles have about the shape
in which they are cheapest; then the columns' widths are balanced, and the heights inside each,
until all finish together (Beaumont et al. 2001, "Matrix multiplication on heterogeneous
platforms").
"""

from __future__ import annotations

import numpy as np

from cleave.core.planning.cost import CostForm, FleetArrays, Floats, Ints, makespan_s

_SCALES = (1.0, 0.8, 1.25, 0.6, 1.6)  # widths tried, as multiples of the cheapest
_SMALLEST = 1e-30  # stands for zero where zero would be divided by


def cut_columns(
    form: CostForm,
    slots: FleetArrays,
    areas: Floats,
    time_s: float,
    sides: tuple[int, int],
) -> Ints | None:
    """Slot, row0, row1, col0 and col1 of each tile; None if no such cut fits the slots' memory.

    Args:
        form: Cost of a tile by its sides in quanta.
        slots: What may do one tile each.
        areas: What each slot can do in ``time_s``, in cells; more than 0.
        time_s: About the makespan to expect.
        sides: Rows and columns of the rectangle in quanta.

    Returns:
        ``(tiles, 5)``.
    """
    order = np.argsort(-areas, kind="stable")
    slots, areas = slots.take(order), areas[order] * (sides[0] * sides[1] / areas.sum())
    cuts = _cuts(form, slots, areas, time_s, sides)
    turned = _cuts(form.transposed, slots, areas, time_s, sides[::-1])
    cuts.extend(cells[:, [0, 3, 4, 1, 2]] for cells in turned)
    if not cuts:
        return None
    best = min(cuts, key=lambda cells: makespan_s(form, slots, cells))
    best[:, 0] = order[best[:, 0]]
    return best


def _cuts(
    form: CostForm, slots: FleetArrays, areas: Floats, time_s: float, sides: tuple[int, int]
) -> list[Ints]:
    """Two cuts: into the columns that finish soonest before rounding, and as a single column."""
    preferred = _preferred_widths(form, slots, areas, sides[1])
    cuts: list[Ints | None] = []
    best: tuple[float, _Columns, Floats] | None = None
    for scale in _SCALES:
        starts = _group(np.maximum(preferred * scale, 1.0), areas, sides)
        columns = _Columns(form, slots, starts, sides[0], time_s)
        widths, last_s = columns.balanced(np.add.reduceat(areas, starts) / sides[0])
        if best is None or last_s < best[0]:
            best = last_s, columns, widths
    if best is not None:
        cuts.append(best[1].cells(best[2], sides[1]))
    single = _Columns(form, slots, np.zeros(1, dtype=np.int64), sides[0], time_s)
    cuts.append(single.cells(np.full(1, float(sides[1])), sides[1]))
    return [cells for cells in cuts if cells is not None]


class _Columns:
    """Slots grouped into columns.

    Args:
        form: Cost of a tile by its sides in quanta.
        slots: In order, column by column.
        starts: The first slot of each column.
        n_rows: What the heights of a column add up to.
        time_s: About the makespan to expect.
    """

    def __init__(
        self, form: CostForm, slots: FleetArrays, starts: Ints, n_rows: int, time_s: float
    ) -> None:
        self._form = form
        self._slots = slots
        self._starts = starts
        self._n_rows = n_rows
        self._time_s = time_s
        self.index = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(slots))))

    def balanced(self, widths: Floats) -> tuple[Floats, float]:
        """Widths of the same sum with which columns finish together, and the time of the last."""
        total = widths.sum()
        best = widths, np.inf
        for _ in range(5):
            times_s = self._times_s(widths)
            if times_s.max() < best[1]:
                best = widths, float(times_s.max())
            widths = widths * (times_s.mean() / times_s) ** 0.7
            widths = widths * (total / widths.sum())
        return best

    def cells(self, widths: Floats, n_cols: int) -> Ints | None:
        """The tiles with whole sides, ``(tiles, 5)``; None if no whole heights fit the memory."""
        whole = self._rounded(widths, n_cols)
        heights = self._heights(whole)
        if heights is None:
            return None
        col1 = np.cumsum(whole).astype(np.int64)[self.index]
        col0 = col1 - whole.astype(np.int64)[self.index]
        row0 = np.cumsum(heights) - heights - self.index * self._n_rows
        slot = np.arange(len(heights))
        return np.stack([slot, row0, row0 + heights, col0, col1], axis=1)[heights > 0]

    def _rounded(self, widths: Floats, n_cols: int) -> Floats:
        """Whole widths, at least 1, that add up to ``n_cols``; fast columns are rounded up."""
        whole = np.maximum(np.floor(widths), 1.0)
        while (surplus := int(whole.sum()) - n_cols) > 0:
            widest = np.argsort(-whole, kind="stable")[:surplus]
            whole[widest] -= whole[widest] > 1
        missing = n_cols - int(whole.sum())
        if missing:
            whole[np.argsort(self._times_s(whole + 1), kind="stable")[:missing]] += 1
        return whole

    def _heights(self, widths: Floats) -> Ints | None:
        """Whole heights that fill each column and finish soonest; None if memory forbids."""
        limits = _Heights(self._form, self._slots, widths[self.index], self._n_rows)
        if (self._rows(np.floor(limits.most)) < self._n_rows).any():
            return None
        low_s = np.zeros(len(self._starts))
        high_s = np.full(len(self._starts), self._time_s)
        while (
            short := self._rows(np.floor(limits.within(high_s[self.index]))) < self._n_rows
        ).any():
            low_s, high_s = np.where(short, high_s, low_s), np.where(short, 2 * high_s, high_s)
        for _ in range(30):
            middle_s = (low_s + high_s) / 2
            short = self._rows(np.floor(limits.within(middle_s[self.index]))) < self._n_rows
            low_s, high_s = np.where(short, middle_s, low_s), np.where(short, high_s, middle_s)
        heights = np.floor(limits.within(high_s[self.index]))
        return self._trimmed(heights.astype(np.int64))

    def _trimmed(self, heights: Ints) -> Ints:
        """The heights less what is too much, taken from the last slots of each column."""
        ends = np.cumsum(heights)
        before = ends - heights
        base = before[self._starts][self.index]
        top = np.minimum(before - base, self._n_rows)
        return np.minimum(ends - base, self._n_rows) - top

    def _times_s(self, widths: Floats) -> Floats:
        """When each column would finish, between half and twice the expected time."""
        limits = _Heights(self._form, self._slots, widths[self.index], self._n_rows)
        low_s = np.full(len(self._starts), self._time_s / 2)
        high_s = np.full(len(self._starts), self._time_s * 2)
        for _ in range(11):
            middle_s = (low_s + high_s) / 2
            short = self._rows(limits.within(middle_s[self.index])) < self._n_rows
            low_s, high_s = np.where(short, middle_s, low_s), np.where(short, high_s, middle_s)
        return high_s

    def _rows(self, heights: Floats) -> Floats:
        return np.asarray(np.add.reduceat(heights, self._starts))


class _Heights:
    """Rows of given widths that slots can do: the least of lines in time and of memory."""

    def __init__(self, form: CostForm, slots: FleetArrays, widths: Floats, n_rows: int) -> None:
        self._lines: list[tuple[Floats, Floats]] = []
        for rate, (c0, c1, c2, c3) in (
            (slots.downlink_bytes_per_s, form.down),
            (slots.uplink_bytes_per_s, form.up),
            (slots.flops_per_s, (0.0, 0.0, 0.0, form.flops)),
        ):
            if c0 or c1 or c2 or c3:
                row = np.maximum(c1 + c3 * widths, _SMALLEST)
                fixed = (slots.latency_s * rate + (c0 + c2 * widths)) / row
                self._lines.append((rate / row, fixed))
        r0, r1, r2, r3 = form.memory
        room = slots.memory_bytes - (r0 + r2 * widths)
        self.most = np.clip(room / np.maximum(r1 + r3 * widths, _SMALLEST), 0.0, n_rows)

    def within(self, times_s: Floats) -> Floats:
        """Rows that each slot can do by its time."""
        heights = self.most
        for slope, fixed in self._lines:
            heights = np.minimum(heights, slope * times_s - fixed)
        return np.maximum(heights, 0.0)


def _preferred_widths(form: CostForm, slots: FleetArrays, areas: Floats, n_cols: int) -> Floats:
    """The widths with which tiles of these areas take the least time for their sides."""
    by_row = form.down[1] / slots.downlink_bytes_per_s + form.up[1] / slots.uplink_bytes_per_s
    by_col = form.down[2] / slots.downlink_bytes_per_s + form.up[2] / slots.uplink_bytes_per_s
    free = (by_row == 0) & (by_col == 0)
    ratio = np.where(free, 1.0, by_row / np.maximum(by_col, _SMALLEST))
    return np.clip(np.sqrt(areas * ratio), 1.0, n_cols)


def _group(widths: Floats, areas: Floats, sides: tuple[int, int]) -> Ints:
    """The first slot of each column, when columns are filled until they are as wide as wanted."""
    reach = np.concatenate(([0.0], np.cumsum(areas)))
    starts = [0]
    while starts[-1] < len(areas):
        first = starts[-1]
        end = int(np.searchsorted(reach, reach[first] + sides[0] * widths[first]))
        starts.append(min(max(end, first + 1), len(areas)))
    starts.pop()
    if (
        len(starts) > 1
        and reach[-1] - reach[starts[-1]] < (reach[starts[-1]] - reach[starts[-2]]) / 2
    ):
        starts.pop()
    return np.array(starts[: sides[1]], dtype=np.int64)
