"""Tiles cover the rectangle once, fit their devices, and are done near the lower bound."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.planning.fleets import device, fleets, gemm, homes, works

from cleave.core.device import DeviceProfile
from cleave.core.fleet import Fleet, Server, Site
from cleave.core.matrix import DType, Region
from cleave.core.planning.cost import CostForm, tile_cost
from cleave.core.planning.partition import Partition, partition
from cleave.core.work import Work
from cleave.errors import PlanError

QUANTA = st.sampled_from([1, 2, 5, 16])


def cut(
    work: Work, devices: list[DeviceProfile], row_quantum: int = 1, col_quantum: int = 1
) -> Partition:
    sides, quanta = (work.n_rows, work.n_cols), (row_quantum, col_quantum)
    return partition(CostForm.of(work), Fleet(tuple(devices)), DType.F32, sides, quanta)


def covered(work: Work, plan: Partition) -> np.ndarray:
    times = np.zeros((work.n_rows, work.n_cols), dtype=int)
    for placement in plan.tiles:
        tile = placement.tile
        times[tile.row0 : tile.row1, tile.col0 : tile.col1] += 1
    return times


def finish_s(work: Work, plan: Partition, devices: list[DeviceProfile]) -> float:
    form = CostForm.of(work)
    busy = {profile.device_id: [0.0, 0.0, 0.0] for profile in devices}
    for placement in plan.tiles:
        m, n = placement.tile.n_rows, placement.tile.n_cols
        load = busy[placement.device_id]
        load[0] += tile_cost(form.down, m, n)
        load[1] += tile_cost(form.up, m, n)
        load[2] += form.flops * m * n
    return max(
        profile.latency_s
        + max(
            busy[profile.device_id][0] / profile.downlink_bytes_per_s,
            busy[profile.device_id][1] / profile.uplink_bytes_per_s,
            busy[profile.device_id][2] / profile.flops_per_s[DType.F32],
        )
        for profile in devices
        if any(busy[profile.device_id])
    )


@given(works(), fleets(), QUANTA, QUANTA)
def test_tiles_cover_every_cell_once_in_quanta(
    work: Work, devices: list[DeviceProfile], row_quantum: int, col_quantum: int
) -> None:
    plan = cut(work, devices, row_quantum, col_quantum)
    assert (covered(work, plan) == 1).all()
    for placement in plan.tiles:
        tile = placement.tile
        assert tile.row0 % row_quantum == 0 == tile.col0 % col_quantum
        assert tile.row1 % row_quantum == 0 or tile.row1 == work.n_rows
        assert tile.col1 % col_quantum == 0 or tile.col1 == work.n_cols


@given(works(), fleets(), QUANTA, QUANTA)
def test_the_makespan_is_that_of_the_tiles_and_not_below_the_bound(
    work: Work, devices: list[DeviceProfile], row_quantum: int, col_quantum: int
) -> None:
    plan = cut(work, devices, row_quantum, col_quantum)
    assert plan.makespan_s == pytest.approx(finish_s(work, plan, devices))
    assert plan.makespan_s >= plan.bound_s * (1 - 1e-9)


@given(works(), fleets())
def test_every_device_has_tiles_or_a_reason(work: Work, devices: list[DeviceProfile]) -> None:
    plan = cut(work, devices)
    used = {placement.device_id for placement in plan.tiles}
    reasons = dict(plan.left_out)
    assert used.isdisjoint(reasons)
    assert used | set(reasons) == {profile.device_id for profile in devices}
    assert all(reasons.values())


@given(works(), fleets(max_size=20), st.floats(0.01, 1.5), st.data())
def test_no_tile_exceeds_its_devices_memory(
    work: Work, devices: list[DeviceProfile], share: float, data: st.DataObject
) -> None:
    form = CostForm.of(work)
    largest = form.memory_bytes(work.n_rows, work.n_cols)
    smallest = form.memory_bytes(1, 1)
    lent = max(int(share * largest), 2 * smallest)
    spread = st.floats(0.5, 2.0)
    devices = [replace(one, memory_bytes=int(lent * data.draw(spread))) for one in devices]
    plan = cut(work, devices)
    memory = {profile.device_id: profile.memory_bytes for profile in devices}
    assert (covered(work, plan) == 1).all()
    for placement in plan.tiles:
        needed_bytes = form.memory_bytes(placement.tile.n_rows, placement.tile.n_cols)
        assert needed_bytes <= memory[placement.device_id]
    assert plan.makespan_s >= plan.bound_s * (1 - 1e-9)


@pytest.mark.parametrize(("n_devices", "tolerance"), [(3, 4e-4), (8, 0.1)])
@given(data=st.data())
def test_a_further_device_does_not_make_it_longer(
    data: st.DataObject, n_devices: int, tolerance: float
) -> None:
    """A handful take the best cut, to the 1e-4 at which the search stops; more take a good one."""
    work, devices = data.draw(works()), data.draw(fleets(max_size=n_devices))
    place, slowness = data.draw(st.integers(0, n_devices)), data.draw(st.floats(1.0, 1000.0))
    further = device(99, flops=1e9 / slowness, down=1e6 / slowness, up=1e6 / slowness)
    before = cut(work, devices)
    after = cut(work, [*devices[:place], further, *devices[place:]])
    assert after.makespan_s <= before.makespan_s * (1 + tolerance)


@given(works(), fleets())
def test_the_same_question_has_the_same_answer(work: Work, devices: list[DeviceProfile]) -> None:
    assert cut(work, devices) == cut(work, devices)


@pytest.mark.parametrize("n_devices", [16, 128, 1024, 8192])
@pytest.mark.parametrize("sides", [(131072, 22016, 4096), (131072, 4096, 11008)])
def test_fleets_of_homes_come_within_five_percent_of_the_bound(
    n_devices: int, sides: tuple[int, int, int]
) -> None:
    plan = cut(gemm(*sides).forms()[0], homes(n_devices))
    assert plan.makespan_s <= 1.05 * plan.bound_s


def test_two_equal_devices_share_the_longer_side() -> None:
    work = gemm(m=2048, n=3072, k=768).forms()[0]
    plan = cut(work, [device(1), device(2)])
    assert [placement.tile for placement in plan.tiles] == [
        Region(0, 2048, 0, 1536),
        Region(0, 2048, 1536, 3072),
    ]
    assert plan.makespan_s == 4 * 2048 * 1536 / 1e6  # the uplink is the longest part


def test_four_equal_devices_take_a_quarter_each() -> None:
    work = gemm(m=400, n=400, k=4000).forms()[0]
    plan = cut(work, [device(i, flops=1e12) for i in range(4)])
    assert {(placement.tile.n_rows, placement.tile.n_cols) for placement in plan.tiles} == {
        (200, 200)
    }


def test_shares_follow_the_rates() -> None:
    work = gemm(m=1000, n=1, k=10_000).forms()[0]  # computing is the longest part
    plan = cut(work, [device(1, flops=3e4), device(2, flops=1e4)])
    rows = {placement.device_id: placement.tile.n_rows for placement in plan.tiles}
    assert rows == {1: 750, 2: 250}


@pytest.mark.parametrize("sides", [(1, 7), (7, 1), (1, 1), (2, 2)])
def test_more_devices_than_cells(sides: tuple[int, int]) -> None:
    work = gemm(*sides, k=3).forms()[0]
    plan = cut(work, [device(i) for i in range(40)])
    assert (covered(work, plan) == 1).all()
    assert len(plan.tiles) <= sides[0] * sides[1]


@pytest.mark.parametrize("sides", [(0, 5), (5, 0)])
def test_an_empty_rectangle_has_no_tiles(sides: tuple[int, int]) -> None:
    plan = cut(gemm(*sides, k=3).forms()[0], [device(1)])
    assert plan == Partition(tiles=(), makespan_s=0.0, bound_s=0.0, left_out=())


def test_devices_that_would_lengthen_it_are_left_out_with_the_reason() -> None:
    work = gemm(m=100, n=100, k=100).forms()[0]
    plan = cut(
        work,
        [
            device(1),
            device(2, latency_s=60.0),
            device(3, up=1e-3),
            device(4, memory_bytes=700),  # one cell takes 400 + 400 + 4 bytes
            replace(device(5), flops_per_s={DType.BF16: 1e15}),
        ],
    )
    reasons = dict(plan.left_out)
    assert {placement.device_id for placement in plan.tiles} == {1}
    assert "round trip takes 1 min" in reasons[2]
    assert "smallest tile takes 1 h 7 min, the others" in reasons[3]
    assert "lends 700 B, the smallest tile needs 804 B" in reasons[4]
    assert reasons[5] == "may not be given float32"


def test_what_no_device_can_hold_is_done_in_several_tiles_each() -> None:
    work = gemm(m=100, n=100, k=100).forms()[0]  # 120,000 bytes in one piece
    plan = cut(work, [device(i, memory_bytes=20_000) for i in range(2)])
    assert (covered(work, plan) == 1).all()
    assert len(plan.tiles) >= 8
    assert {placement.device_id for placement in plan.tiles} == {0, 1}


def test_a_quantum_that_fits_nowhere_is_an_error_that_names_the_bytes() -> None:
    work = gemm(m=100, n=100, k=100).forms()[0]
    with pytest.raises(
        PlanError, match=r"needs 8.4 kB, but no device has room for more than 8 kB: lend"
    ):
        cut(work, [device(1, memory_bytes=8000)], row_quantum=10, col_quantum=10)


def test_a_type_that_no_device_may_be_given_is_an_error() -> None:
    work = gemm(m=4, n=4, k=4).forms()[0]
    with pytest.raises(PlanError, match="no device may be given float32: wait for one"):
        cut(work, [replace(device(1), flops_per_s={})])


@st.composite
def sited_fleets(draw: st.DrawFn) -> Fleet:
    """Devices of which some share one of two lines, and a server; any of these may bind."""
    rate = st.floats(0.1, 10.0)
    sites = tuple(
        Site(site_id=i, downlink_bytes_per_s=1e6 * draw(rate), uplink_bytes_per_s=1e6 * draw(rate))
        for i in (1, 2)
    )
    devices = [replace(each, site_id=draw(st.integers(0, 2))) for each in draw(fleets())]
    nic = draw(st.sampled_from([math.inf, 1e6, 1e7]))
    return Fleet(tuple(devices), sites, Server(nic_bytes_per_s=nic))


@settings(max_examples=60)
@given(works(), sited_fleets(), QUANTA)
def test_with_sites_and_a_server_the_makespan_counts_all_bytes_that_pass(
    work: Work, fleet: Fleet, quantum: int
) -> None:
    form, sides = CostForm.of(work), (work.n_rows, work.n_cols)
    plan = partition(form, fleet, DType.F32, sides, (quantum, quantum))
    assert (covered(work, plan) == 1).all()
    lines_s = [finish_s(work, plan, list(fleet.devices))]
    for crowd, down_rate, up_rate in lines(fleet):
        ids = {device.device_id for device in crowd}
        tiles = [placement.tile for placement in plan.tiles if placement.device_id in ids]
        if tiles:
            used = {placement.device_id for placement in plan.tiles} & ids
            down = sum(tile_cost(form.down, tile.n_rows, tile.n_cols) for tile in tiles)
            up = sum(tile_cost(form.up, tile.n_rows, tile.n_cols) for tile in tiles)
            first_s = min(device.latency_s for device in crowd if device.device_id in used)
            lines_s.append(first_s + max(down / down_rate, up / up_rate))
    assert plan.makespan_s == pytest.approx(max(lines_s))
    assert plan.makespan_s >= plan.bound_s * (1 - 1e-9)
    assert plan == partition(form, fleet, DType.F32, sides, (quantum, quantum))


def lines(fleet: Fleet) -> list[tuple[list[DeviceProfile], float, float]]:
    """Who shares each line, and its rates: the server's is everybody's."""
    server = fleet.server
    shared = [(list(fleet.devices), server.egress_bytes_per_s, server.ingress_bytes_per_s)]
    for site in fleet.sites:
        crowd = [device for device in fleet.devices if device.site_id == site.site_id]
        shared.append((crowd, site.downlink_bytes_per_s, site.uplink_bytes_per_s))
    return shared


@pytest.mark.parametrize("n_devices", [16, 128, 1024])
def test_homes_that_share_lines_come_within_five_percent_of_the_bound(n_devices: int) -> None:
    devices = [replace(each, site_id=1 + i // 3) for i, each in enumerate(homes(n_devices))]
    sites = tuple(
        Site(site_id=1 + i // 3, downlink_bytes_per_s=15e6, uplink_bytes_per_s=3e6)
        for i in range(0, n_devices, 3)
    )
    form = CostForm.of(gemm(131072, 22016, 4096).forms()[0])
    plan = partition(form, Fleet(tuple(devices), sites), DType.F32, (131072, 22016))
    assert plan.makespan_s <= 1.05 * plan.bound_s
    assert {reason for _, reason in plan.left_out} == {
        "the line of its site is full with what fewer devices do there"
    }


def test_behind_a_slow_server_few_devices_do_all() -> None:
    form = CostForm.of(gemm(400, 400, 4000).forms()[0])
    devices = tuple(device(i, flops=1e12) for i in range(16))
    # A quarter each takes 6.4 MB down, 6.4 s: four devices need 25.6 MB of the server in that time.
    fast = partition(form, Fleet(devices, (), Server(nic_bytes_per_s=1e8)), DType.F32, (400, 400))
    slow = partition(form, Fleet(devices, (), Server(nic_bytes_per_s=4e6)), DType.F32, (400, 400))
    assert len({placement.device_id for placement in fast.tiles}) == 16
    assert len({placement.device_id for placement in slow.tiles}) == 4
    assert slow.makespan_s == pytest.approx(6.4)
    assert "would add to what passes the server" in slow.left_out[0][1]
