"""Strips are tasks of one tile that let sending, computing and returning overlap."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.planning.fleets import device, gemm, works

from cleave.core.device import DeviceProfile
from cleave.core.matrix import DType, Region
from cleave.core.planning.cost import CostForm
from cleave.core.planning.strips import strips, strips_memory_bytes, strips_time_s
from cleave.core.work import Work
from cleave.errors import PlanError


def cut(work: Work, tile: Region, one: DeviceProfile, target_s: float = 0.03) -> tuple[Region, ...]:
    return strips(tile, CostForm.of(work), one, work=work, target_s=target_s)


@given(works(), st.floats(1e-3, 10.0), st.sampled_from([1, 4]), st.floats(0.02, 1.0))
def test_strips_cover_the_tile_once_and_fit(
    work: Work, speed: float, quantum: int, memory_share: float
) -> None:
    work = replace(work, row_quantum=quantum, col_quantum=quantum)
    form = CostForm.of(work)
    needed = form.memory_bytes(min(quantum, work.n_rows), min(quantum, work.n_cols))
    lent = max(needed, int(memory_share * form.memory_bytes(work.n_rows, work.n_cols)))
    one = device(1, flops=1e9 * speed, down=1e6 * speed, memory_bytes=lent)
    times = np.zeros((work.n_rows, work.n_cols), dtype=int)
    for part in cut(work, work.whole, one):
        assert form.memory_bytes(part.n_rows, part.n_cols) <= lent
        assert part.row0 % quantum == 0 == part.col0 % quantum
        times[part.row0 : part.row1, part.col0 : part.col1] += 1
    assert (times == 1).all()


def test_a_long_tile_is_cut_into_eight_at_most() -> None:
    work = gemm(m=800, n=100, k=100).forms()[0]
    parts = cut(work, work.whole, device(1))
    assert parts == tuple(Region(row, row + 100, 0, 100) for row in range(0, 800, 100))


def test_a_short_tile_stays_whole() -> None:
    work = gemm(m=800, n=100, k=100).forms()[0]  # 0.36 s down, the longest part
    assert cut(work, work.whole, device(1), target_s=0.2) == (work.whole,)


def test_the_larger_operand_is_the_one_that_is_cut() -> None:
    work = gemm(m=100, n=800, k=100).forms()[0]
    parts = cut(work, work.whole, device(1))
    assert {part.n_rows for part in parts} == {100}
    assert len(parts) == 8


def test_results_that_every_strip_would_repeat_are_not() -> None:
    # Each strip of the inner axis returns all of 500 x 500 sums: cut the columns instead.
    work = gemm(m=500, n=500, k=500).forms()[1]
    parts = cut(work, work.whole, device(1, up=1e5))
    assert {part.n_rows for part in parts} == {500}
    one_column = Region(0, 500, 0, 1)
    assert cut(work, one_column, device(1, up=1e3)) == (one_column,)


def test_a_part_of_a_tile_starts_where_the_tile_does() -> None:
    work = gemm(m=800, n=100, k=100).forms()[0]
    parts = cut(work, Region(400, 800, 50, 100), device(1))
    assert parts[0].row0 == 400
    assert parts[-1].row1 == 800
    assert {(part.col0, part.col1) for part in parts} == {(50, 100)}


def test_a_tile_that_cannot_be_held_in_any_part_is_an_error() -> None:
    work = gemm(m=800, n=100, k=100).forms()[0]
    with pytest.raises(
        PlanError, match="forward needs 804 B, device 1 lends 700 B: lend more with --memory"
    ):
        cut(work, work.whole, device(1, memory_bytes=700))


WHOLE = Region(0, 8, 0, 10)
GEMM = CostForm.of(gemm(m=8, n=10, k=5).forms()[0])  # fp32: 20 bytes a row, 20 a column, 4 a cell


def test_strips_take_the_longest_phase_and_one_strip_of_the_others() -> None:
    # B is 200 bytes, A 160, C 320; 800 flops.
    one = device(1, down=200.0, up=80.0, flops=400.0, latency_s=0.5)
    # B takes 1 s; then 0.8 s of A, 2 s of work and 4 s of results, in four strips:
    # the first is ready to return after (0.8 + 2) / 4.
    time_s = strips_time_s(GEMM, WHOLE, one, dtype=DType.F32, n_strips=4)
    assert time_s == pytest.approx(0.5 + 1 + 0.7 + 4)
    alone_s = strips_time_s(GEMM, WHOLE, one, dtype=DType.F32, n_strips=1)
    assert alone_s == pytest.approx(0.5 + 1 + 0.8 + 2 + 4)


@given(st.integers(1, 8), st.floats(0.1, 9.0), st.floats(0.1, 9.0), st.floats(0.1, 9.0))
def test_the_time_is_that_of_strips_that_go_through_link_processor_and_link_by_turns(
    n_strips: int, down: float, flops: float, up: float
) -> None:
    form = CostForm(down=(0, 1, 0, 0), up=(0, 1, 0, 0), flops=1, memory=(0, 0, 0, 0))
    one = device(1, down=down, flops=flops, up=up)
    tile = Region(0, n_strips, 0, 1)
    sent_s = done_s = back_s = 0.0
    for _ in range(n_strips):
        sent_s += 1 / down
        done_s = max(sent_s, done_s) + 1 / flops
        back_s = max(done_s, back_s) + 1 / up
    time_s = strips_time_s(form, tile, one, dtype=DType.F32, n_strips=n_strips)
    assert time_s == pytest.approx(back_s)


def test_strips_hold_what_they_share_and_three_of_them() -> None:
    # B 200 bytes, and for each row 20 of A and 40 of C.
    assert strips_memory_bytes(GEMM, WHOLE, 8) == 200 + 3 * 60
    assert strips_memory_bytes(GEMM, WHOLE, 4) == 200 + 6 * 60
    assert strips_memory_bytes(GEMM, WHOLE, 1) == GEMM.memory_bytes(8, 10)
    assert strips_memory_bytes(GEMM, WHOLE, 2) == GEMM.memory_bytes(8, 10)
