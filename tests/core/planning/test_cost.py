"""The cost form says what a tile's blocks weigh."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.planning.fleets import arrays, device, gemm, works

from cleave.core.fleet import Server, Site
from cleave.core.matrix import DType, Region
from cleave.core.planning.cost import CostForm, Phases, finish_s, phases, tile_cost, tile_time_s
from cleave.core.work import Along, Fate, Operand, Work
from cleave.errors import PlanError


def test_form_of_a_gemm() -> None:
    form = CostForm.of(gemm(m=6, n=10, k=5).forms()[0])  # fp32: a row or column of 5 is 20 bytes
    assert form.down == (0.0, 20.0, 20.0, 0.0)
    assert form.up == (0.0, 0.0, 0.0, 4.0)
    assert form.flops == 10
    assert form.memory == (0.0, 20.0, 20.0, 4.0)


def test_form_of_a_gemm_with_its_inner_axis_cut() -> None:
    over_k_and_n = CostForm.of(gemm(m=6, n=10, k=5).forms()[1])  # partial sums of 6 rows per column
    assert over_k_and_n.down == (0.0, 24.0, 0.0, 4.0)
    assert over_k_and_n.up == (0.0, 0.0, 24.0, 0.0)


@given(works(), st.data())
def test_bytes_are_those_of_the_blocks(work: Work, data: st.DataObject) -> None:
    row0, row1 = sorted(data.draw(st.integers(0, work.n_rows)) for _ in range(2))
    col0, col1 = sorted(data.draw(st.integers(0, work.n_cols)) for _ in range(2))
    tile = Region(row0, row1, col0, col1)
    form = CostForm.of(work)
    down = sum(operand.block(tile).n_bytes for operand in work.inputs)
    up = sum(result.block(tile).n_bytes for result in work.results)
    assert tile_cost(form.down, tile.n_rows, tile.n_cols) == down
    assert tile_cost(form.up, tile.n_rows, tile.n_cols) == up
    workspace = work.workspace_bytes_per_cell * tile.area
    assert form.memory_bytes(tile.n_rows, tile.n_cols) == down + up + workspace


def test_a_result_that_stays_takes_memory_but_no_uplink() -> None:
    work = gemm(m=6, n=10, k=5).forms()[0]
    kept = replace(work, results=(replace(work.results[0], fate=Fate.KEPT),))
    assert CostForm.of(kept).up == (0.0, 0.0, 0.0, 0.0)
    assert CostForm.of(kept).memory == CostForm.of(work).memory


def test_an_operand_that_follows_one_axis_twice_is_refused() -> None:
    work = gemm(m=6, n=6, k=6).forms()[0]
    square = Operand(matrix=work.inputs[0].matrix, rows=Along.ROWS, cols=Along.ROWS)
    with pytest.raises(PlanError, match="tensor 1: both dimensions follow rows"):
        CostForm.of(replace(work, inputs=(square,)))


def test_units_and_transposition_keep_the_cost() -> None:
    form = CostForm(down=(1, 2, 3, 4), up=(5, 6, 7, 8), flops=9, memory=(1, 0, 0, 0))
    assert tile_cost(form.in_units(3, 5).down, 2, 2) == tile_cost(form.down, 6, 10)
    assert tile_cost(form.transposed.up, 10, 6) == tile_cost(form.up, 6, 10)


def test_time_is_the_round_trip_and_the_longest_part() -> None:
    form = CostForm.of(gemm(m=6, n=10, k=5).forms()[0])
    slow = device(1, flops=300, down=320, up=120, latency_s=0.5)
    whole = Region(0, 6, 0, 10)  # 320 bytes down, 600 flops, 240 bytes up
    assert phases(form, whole, slow, DType.F32) == Phases(1.0, 2.0, 2.0)
    assert tile_time_s(form, whole, slow, DType.F32) == 2.5


def test_a_single_product_takes_up_to_a_quarter_longer() -> None:
    assert Phases(1.0, 0.1, 1.0).single_task_s == 1.25
    assert Phases(4.0, 0.1, 1.0).single_task_s == 4.0
    assert Phases(1.0, 3.0, 1.0).single_task_s == 3.0
    assert Phases(0.0, 0.0, 0.0).single_task_s == 0.0


def test_devices_without_the_type_are_not_in_the_arrays() -> None:
    able = arrays([device(3), replace(device(4), flops_per_s={DType.BF16: 1e9})])
    assert able.device_id.tolist() == [3]
    assert able.rates() == [(1e6, 1e6, 1e9, 0.0, float(1 << 50))]


def test_a_line_and_the_server_take_the_time_of_all_bytes_that_pass() -> None:
    line = Site(site_id=5, downlink_bytes_per_s=100.0, uplink_bytes_per_s=10.0)
    devices = [
        device(1, site_id=5, latency_s=0.2),
        device(2, site_id=5, latency_s=0.1),
        device(3, latency_s=0.01),
    ]
    down, up, flops = np.array([300.0, 200.0, 400.0]), np.array([20.0, 10.0, 0.0]), np.zeros(3)
    # Site: 500 bytes at 100 bytes/s after the shorter round trip; 30 bytes up take 3 s.
    assert finish_s(arrays(devices, [line]), down, up, flops) == pytest.approx(5.1)
    # Server: 900 bytes at 90 bytes/s after the shortest of all.
    slow = Server(nic_bytes_per_s=90.0)
    assert finish_s(arrays(devices, [line], slow), down, up, flops) == pytest.approx(10.01)


def test_a_site_whose_devices_do_nothing_takes_no_time() -> None:
    line = Site(site_id=5, downlink_bytes_per_s=100.0, uplink_bytes_per_s=10.0)
    fleet = arrays([device(1, site_id=5, latency_s=9.0), device(2, down=100.0)], [line])
    assert finish_s(fleet, np.array([0.0, 50.0]), np.zeros(2), np.zeros(2)) == 0.5
