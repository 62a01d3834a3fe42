"""The lower bound is below every plan, and where it is known it is exact."""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.core.planning.fleets import arrays, device, gemm

from cleave.core.fleet import Server, Site
from cleave.core.matrix import DType, Region
from cleave.core.planning.bound import area_within, lower_bound_s
from cleave.core.planning.cost import CostForm, FleetArrays, makespan_s, tile_time_s

COSTS = st.tuples(*[st.sampled_from([0.0, 1.0, 40.0]) for _ in range(4)])
DOWN_ONLY = CostForm(down=(0, 8, 8, 0), up=(0, 0, 0, 0), flops=0, memory=(0, 0, 0, 0))
EXACT = 3e-4  # the bound is rounded down by up to 2e-4


@given(COSTS, COSTS, st.sampled_from([0.0, 100.0]), st.integers(1, 40), st.integers(1, 40))
def test_no_tile_done_in_time_is_larger_than_the_area_says(
    down: tuple[float, float, float, float],
    up: tuple[float, float, float, float],
    flops: float,
    m: int,
    n: int,
) -> None:
    form = CostForm(down=down, up=up, flops=flops, memory=(0, 0, 0, 0))
    one = device(1, flops=1e3, down=1e3, up=300.0, latency_s=0.1)
    time_s = tile_time_s(form, Region(0, m, 0, n), one, DType.F32)
    area = area_within(form, arrays([one]), 40, 40, time_s)
    assert area[0] >= m * n * (1 - 1e-9)


@given(COSTS, COSTS)
def test_some_tile_of_the_area_is_done_in_time(
    down: tuple[float, float, float, float], up: tuple[float, float, float, float]
) -> None:
    form = CostForm(down=down, up=up, flops=100, memory=(0, 0, 0, 0))
    one = device(1, flops=1e3, down=1e3, up=300.0)
    area = area_within(form, arrays([one]), 40, 40, 7.0)[0]
    assume(area > 0)
    sides = [(m, area / m) for m in np.geomspace(1e-3, 40, 2000) if area / m <= 40]
    # A grid of shapes comes within a percent of the best one.
    assert min(_time_s(form, m, n) for m, n in sides) <= 7.0 * 1.01


def _time_s(form: CostForm, m: float, n: float) -> float:
    (d0, d1, d2, d3), (u0, u1, u2, u3) = form.down, form.up
    down_s = (d0 + d1 * m + d2 * n + d3 * m * n) / 1e3
    return max(down_s, (u0 + u1 * m + u2 * n + u3 * m * n) / 300, form.flops * m * n / 1e3)


def test_four_equal_devices_do_a_quarter_each_in_the_best_shape() -> None:
    fleet = arrays([device(i, down=100.0) for i in range(4)])
    # A quarter of 20 x 20 is 10 x 10: 8 * 20 bytes at 100 bytes/s.
    assert lower_bound_s(DOWN_ONLY, fleet, 20, 20) == pytest.approx(1.6, rel=EXACT)


def test_a_round_trip_comes_on_top() -> None:
    fleet = arrays([device(i, down=100.0, latency_s=3.0) for i in range(4)])
    assert lower_bound_s(DOWN_ONLY, fleet, 20, 20) == pytest.approx(4.6, rel=EXACT)


def test_nothing_to_do_takes_no_time() -> None:
    assert lower_bound_s(DOWN_ONLY, arrays([device(1)]), 0, 20) == 0


def test_a_slow_server_sets_the_bound() -> None:
    devices = [device(i, down=100.0) for i in range(4)]
    fleet = arrays(devices, server=Server(nic_bytes_per_s=10.0))
    # Fewer devices need fewer bytes in all: at best one takes 20 x 20, 320 bytes.
    assert lower_bound_s(DOWN_ONLY, fleet, 20, 20) == pytest.approx(32.0, rel=EXACT)


def test_a_device_with_little_memory_does_several_tiles() -> None:
    form = CostForm(down=(0, 8, 8, 0), up=(0, 0, 0, 0), flops=0, memory=(0, 8, 8, 0))
    small = arrays([device(1, down=100.0, memory_bytes=160)])
    # 10 x 10 at a time: 4 tiles of 160 bytes each.
    assert lower_bound_s(form, small, 20, 20) == pytest.approx(6.4, rel=EXACT)


def test_more_devices_and_more_time_never_do_less() -> None:
    form = CostForm.of(gemm(m=64, n=97, k=13).forms()[0])
    fleet = arrays([device(i, memory_bytes=9000 * (i + 1)) for i in range(3)])
    times = np.geomspace(1e-5, 10, 400)[:, None]
    areas = area_within(form, fleet, 64, 97, times)
    assert areas.shape == (400, 3)
    assert (np.diff(areas, axis=0) >= -1e-9 * math.prod((64, 97))).all()


LINE = Site(site_id=1, downlink_bytes_per_s=25e6, uplink_bytes_per_s=2.5e6)  # 200/20 Mbit/s


def test_devices_behind_one_line_get_no_more_than_its_bytes() -> None:
    work = gemm(m=1000, n=1000, k=1000).forms()[0]
    behind = [device(i, flops=1e15, down=1e9, up=1e9, site_id=1) for i in range(20)]
    # Whoever does how much, 4 MB of results come up at 2.5 MB/s; 20 links of 1 GB/s are of no use.
    bound_s = lower_bound_s(CostForm.of(work), arrays(behind, [LINE]), 1000, 1000)
    assert bound_s == pytest.approx(1.6, rel=EXACT)


def test_behind_one_line_the_fewer_devices_the_fewer_bytes() -> None:
    site = Site(site_id=1, downlink_bytes_per_s=100.0, uplink_bytes_per_s=100.0)
    behind = [device(i, site_id=1, down=100.0) for i in range(4)]
    # At best one of them takes all of 20 x 20, 320 bytes; four tiles would be 4 * 160.
    assert lower_bound_s(DOWN_ONLY, arrays(behind, [site]), 20, 20) == pytest.approx(3.2, rel=EXACT)


def test_a_wide_line_changes_nothing() -> None:
    devices = [device(i, down=100.0, site_id=1) for i in range(4)]
    wide = Site(site_id=1, downlink_bytes_per_s=400.0, uplink_bytes_per_s=1.0)
    # 10 x 10 each: all four links are full, and so is the line.
    assert lower_bound_s(DOWN_ONLY, arrays(devices, [wide]), 20, 20) == pytest.approx(
        1.6, rel=EXACT
    )


def test_two_sites_with_a_device_each_are_two_lines() -> None:
    sites = [Site(site_id=i, downlink_bytes_per_s=100.0, uplink_bytes_per_s=1.0) for i in (7, 8)]
    devices = [device(1, site_id=7), device(2, site_id=8), device(3, site_id=8)]
    # Half of 20 x 40 each is 20 x 20: 320 bytes, for which its line needs 3.2 s.
    assert lower_bound_s(DOWN_ONLY, arrays(devices, sites), 20, 40) == pytest.approx(3.2, rel=EXACT)


@st.composite
def limited(draw: st.DrawFn) -> FleetArrays:
    """Up to three devices, some of them behind one line, and a server; any of them may bind."""
    rate = st.sampled_from([20.0, 50.0, 200.0, 1e4])
    devices = [
        device(
            i,
            flops=draw(st.sampled_from([1e2, 1e5])),
            down=draw(rate),
            up=draw(rate),
            latency_s=draw(st.sampled_from([0.0, 0.1])),
            memory_bytes=draw(st.sampled_from([200, 400, 10_000])),
            site_id=draw(st.sampled_from([0, 1, 1])),
        )
        for i in range(draw(st.integers(1, 3)))
    ]
    site = Site(site_id=1, downlink_bytes_per_s=draw(rate), uplink_bytes_per_s=draw(rate))
    return arrays(devices, [site], Server(nic_bytes_per_s=draw(rate)))


@settings(max_examples=60)
@given(limited(), st.integers(1, 3), st.integers(1, 4), st.data())
def test_no_tiling_and_assignment_whatever_is_below_the_bound(
    fleet: FleetArrays, n_rows: int, n_cols: int, data: st.DataObject
) -> None:
    down, up, flops = data.draw(COSTS), data.draw(COSTS), data.draw(st.sampled_from([1.0, 30.0]))
    form = CostForm(down=down, up=up, flops=flops, memory=down)
    best_s = fastest_of_all_s(form, fleet, n_rows, n_cols)
    assert lower_bound_s(form, fleet, n_rows, n_cols) <= best_s * (1 + 1e-9)


def fastest_of_all_s(form: CostForm, fleet: FleetArrays, n_rows: int, n_cols: int) -> float:
    best_s = math.inf
    for tiling in tilings(n_rows, n_cols):
        for owners in itertools.product(range(len(fleet)), repeat=len(tiling)):
            if all(
                form.memory_bytes(row1 - row0, col1 - col0) <= fleet.memory_bytes[owner]
                for owner, (row0, row1, col0, col1) in zip(owners, tiling, strict=True)
            ):
                cells = np.array(
                    [(owner, *span) for owner, span in zip(owners, tiling, strict=True)]
                )
                best_s = min(best_s, makespan_s(form, fleet, cells))
    return best_s


@functools.cache
def tilings(n_rows: int, n_cols: int) -> list[list[tuple[int, int, int, int]]]:
    """Every way to cut the rectangle into up to three rectangles."""
    found: list[list[tuple[int, int, int, int]]] = []

    def fill(free: frozenset[tuple[int, int]], tiles: list[tuple[int, int, int, int]]) -> None:
        if not free:
            found.append(tiles)
            return
        if len(tiles) == 3:
            return
        row0, col0 = min(free)
        for row1, col1 in itertools.product(
            range(row0 + 1, n_rows + 1), range(col0 + 1, n_cols + 1)
        ):
            cells = set(itertools.product(range(row0, row1), range(col0, col1)))
            if cells <= free:
                fill(free - cells, [*tiles, (row0, row1, col0, col1)])

    fill(frozenset(itertools.product(range(n_rows), range(n_cols))), [])
    return found
