"""The best cut into columns for a handful of devices, by trying every grouping of them.

A column is shared by devices that follow each other in a fixed order; a device may be skipped. In
a given time every group can do a column of some width, and the columns that span most together are
found by dynamic programming over the order. In one order a device more can only add to them, so it
never makes the makespan longer. Sides are whole quanta throughout: nothing is rounded afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cleave.core.planning.cost import CostForm, Rates

Cell = tuple[int, int, int, int, int]
"""Number of a slot, and the rectangle it does: row0, row1, col0, col1, in quanta."""

_PRECISION = 1e-4  # relative, of the makespan
_FIRST_GAP = 0.004  # the best cut is mostly this near to the bound
_SMALLEST = 1e-30  # stands for zero where zero would be divided by

_Budget = tuple[float, float, float, float]  # bytes down and up, flops, bytes of memory
_Group = tuple[int, int]  # first slot, one past the last


class ColumnSearch:
    """Searches the cuts of a rectangle into columns, and of each column into one tile per slot.

    Args:
        form: Cost of a tile by its sides in quanta.
        slots: What may do a tile each, in the order in which columns take them.
        n_rows: Rows of the rectangle in quanta.
        n_cols: Columns of the rectangle in quanta.
    """

    def __init__(self, form: CostForm, slots: Sequence[Rates], n_rows: int, n_cols: int) -> None:
        self._form = form
        self._transposed = form.transposed
        self._slots = slots
        self._n_rows = n_rows
        self._n_cols = n_cols
        # Widths of groups in the longest time that is too short and the shortest that is enough:
        # every time tried later lies between them, and so do the widths.
        self._least: dict[_Group, int] = {}
        self._most: dict[_Group, int] = {}

    def fastest(self, low_s: float, high_s: float = math.inf) -> tuple[float, list[Cell]] | None:
        """Makespan and tiles of the fastest cut; None if there is none below ``high_s``.

        Args:
            low_s: Faster cuts are not looked for; above 0.
            high_s: Cuts that take as long are of no interest.
        """
        best = None
        if high_s < math.inf:
            high_s *= 1 - 2 * _PRECISION
            best = self._columns(high_s)
            if best is None:
                return None
        gap = _FIRST_GAP
        while high_s > low_s * (1 + _PRECISION):
            middle_s = min(low_s * (1 + gap), (low_s + high_s) / 2)
            columns = self._columns(middle_s)
            if columns is not None:
                high_s, best = middle_s, columns
                continue
            low_s, gap = middle_s, 2 * gap
            if best is None and gap > 1 and self._columns(math.inf) is None:
                return None  # no time is enough: memory forbids it
        return (high_s, self._cells(best, high_s)) if best else None

    def _columns(self, time_s: float) -> list[tuple[_Group, int]] | None:
        """Groups and widths that together span the rectangle in ``time_s``, if there are any."""
        budgets = [_budget(slot, time_s) for slot in self._slots]
        widths: dict[_Group, int] = {}
        reach = [0]  # columns that the first i slots can do
        last: list[tuple[_Group, int] | None] = [None]  # the group that brings them there
        while reach[-1] < self._n_cols and len(reach) <= len(budgets):
            end = len(reach)
            reach.append(reach[-1])
            last.append(None)
            for first in range(end - 1, -1, -1):
                group = first, end
                needed = reach[end] - reach[first] + 1  # narrower than this it is of no use
                if end == len(budgets):  # and the last one has to do the rest
                    needed = self._n_cols - reach[first]
                    width = needed if self._can_do(budgets, group, needed) else 0
                elif first == end - 1:
                    width = widths[group] = self._width_alone(budgets[first])
                elif needed > self._n_cols or not self._can_do(budgets, group, needed):
                    continue
                else:
                    guess = widths.get((first + 1, end), 0) + widths[first, first + 1]
                    width = widths[group] = self._width(budgets, group, needed, guess)
                if reach[first] + width > reach[end]:
                    reach[end] = reach[first] + width
                    last[end] = group, width
        if reach[-1] < self._n_cols:
            self._least.update(widths)
            return None
        self._most.update(widths)
        columns: list[tuple[_Group, int]] = []
        end = len(reach) - 1
        while end:
            column = last[end]
            end = column[0][0] if column else end - 1
            if column:
                columns.append(column)
        return columns[::-1]

    def _width_alone(self, budget: _Budget) -> int:
        """The widest column that one slot can do."""
        return _sides(self._transposed, [budget], self._n_rows, self._n_cols)[0]

    def _can_do(self, budgets: Sequence[_Budget], group: _Group, width: int) -> bool:
        """Whether a group can do a column of this width."""
        if width <= self._least.get(group, 0):
            return True
        if width > self._most.get(group, self._n_cols):
            return False
        return self._rows(budgets[group[0] : group[1]], width) >= self._n_rows

    def _width(self, budgets: Sequence[_Budget], group: _Group, low: int, guess: int) -> int:
        """The widest column that a group can do, which is ``low`` or more."""
        within = budgets[group[0] : group[1]]
        low, high = max(low, self._least.get(group, 0)), self._most.get(group, self._n_cols)
        probes = 0
        while low < high:
            guess = min(max(guess, low + 1), high)
            n_rows = self._rows(within, guess)
            if n_rows >= self._n_rows:
                low = guess
            else:
                high = guess - 1
            probes += 1
            # As if rows x columns stayed the same; by halves should that be slow.
            guess = guess * n_rows // self._n_rows if probes % 4 else (low + high + 1) // 2
        return low

    def _rows(self, budgets: Sequence[_Budget], width: int) -> int:
        return sum(_sides(self._form, budgets, width, self._n_rows))

    def _cells(self, columns: Sequence[tuple[_Group, int]], time_s: float) -> list[Cell]:
        budgets = [_budget(slot, time_s) for slot in self._slots]
        cells: list[Cell] = []
        col0 = 0
        for (first, end), width in columns:
            col1 = min(col0 + width, self._n_cols)
            row0 = 0
            heights = _sides(self._form, budgets[first:end], col1 - col0, self._n_rows)
            for slot, height in enumerate(heights, first):
                row1 = min(row0 + height, self._n_rows)
                if row1 > row0:
                    cells.append((slot, row0, row1, col0, col1))
                row0 = row1
            col0 = col1
        return cells


def _budget(slot: Rates, time_s: float) -> _Budget:
    down_bytes_per_s, up_bytes_per_s, flops_per_s, latency_s, memory_bytes = slot
    free_s = time_s - latency_s
    return down_bytes_per_s * free_s, up_bytes_per_s * free_s, flops_per_s * free_s, memory_bytes


def _sides(form: CostForm, budgets: Sequence[_Budget], width: int, limit: int) -> list[int]:
    """The rows of a column of ``width`` that each budget is enough for, up to ``limit``."""
    down_fixed, down_row = _by_row(form.down, width)
    up_fixed, up_row = _by_row(form.up, width)
    memory_fixed, memory_row = _by_row(form.memory, width)
    flops_row = form.flops * width or _SMALLEST
    return [
        max(
            0,
            int(
                min(
                    (down - down_fixed) / down_row,
                    (up - up_fixed) / up_row,
                    flops / flops_row,
                    (memory - memory_fixed) / memory_row,
                    limit,
                )
            ),
        )
        for down, up, flops, memory in budgets
    ]


def _by_row(terms: tuple[float, float, float, float], width: int) -> tuple[float, float]:
    """Cost of a tile of this width: what is due in any case, and for each row."""
    c0, c1, c2, c3 = terms
    return c0 + c2 * width, c1 + c3 * width or _SMALLEST
