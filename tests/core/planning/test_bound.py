"""The lower bound is below every plan, and where it is known it is exact."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.core.planning.fleets import device, gemm

from cleave.core.matrix import DType, Region
from cleave.core.planning.bound import area_within, lower_bound_s
from cleave.core.planning.cost import CostForm, FleetArrays, tile_time_s

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
    area = area_within(form, FleetArrays.of([one], DType.F32), 40, 40, time_s)
    assert area[0] >= m * n * (1 - 1e-9)


@given(COSTS, COSTS)
def test_some_tile_of_the_area_is_done_in_time(
    down: tuple[float, float, float, float], up: tuple[float, float, float, float]
) -> None:
    form = CostForm(down=down, up=up, flops=100, memory=(0, 0, 0, 0))
    one = device(1, flops=1e3, down=1e3, up=300.0)
    area = area_within(form, FleetArrays.of([one], DType.F32), 40, 40, 7.0)[0]
    assume(area > 0)
    sides = [(m, area / m) for m in np.geomspace(1e-3, 40, 2000) if area / m <= 40]
    # A grid of shapes comes within a percent of the best one.
    assert min(_time_s(form, m, n) for m, n in sides) <= 7.0 * 1.01


def _time_s(form: CostForm, m: float, n: float) -> float:
    (d0, d1, d2, d3), (u0, u1, u2, u3) = form.down, form.up
    down_s = (d0 + d1 * m + d2 * n + d3 * m * n) / 1e3
    return max(down_s, (u0 + u1 * m + u2 * n + u3 * m * n) / 300, form.flops * m * n / 1e3)


def test_four_equal_devices_do_a_quarter_each_in_the_best_shape() -> None:
    fleet = FleetArrays.of([device(i, down=100.0) for i in range(4)], DType.F32)
    # A quarter of 20 x 20 is 10 x 10: 8 * 20 bytes at 100 bytes/s.
    assert lower_bound_s(DOWN_ONLY, fleet, 20, 20) == pytest.approx(1.6, rel=EXACT)


def test_a_round_trip_comes_on_top() -> None:
    fleet = FleetArrays.of([device(i, down=100.0, latency_s=3.0) for i in range(4)], DType.F32)
    assert lower_bound_s(DOWN_ONLY, fleet, 20, 20) == pytest.approx(4.6, rel=EXACT)


def test_nothing_to_do_takes_no_time() -> None:
    assert lower_bound_s(DOWN_ONLY, FleetArrays.of([device(1)], DType.F32), 0, 20) == 0


def test_a_slow_server_sets_the_bound() -> None:
    fleet = FleetArrays.of([device(i, down=100.0) for i in range(4)], DType.F32)
    # Fewer devices need fewer bytes in all: at best one takes 20 x 20, 320 bytes.
    limited_s = lower_bound_s(DOWN_ONLY, fleet, 20, 20, egress_bytes_per_s=10.0)
    assert limited_s == pytest.approx(32.0, rel=EXACT)


def test_a_device_with_little_memory_does_several_tiles() -> None:
    form = CostForm(down=(0, 8, 8, 0), up=(0, 0, 0, 0), flops=0, memory=(0, 8, 8, 0))
    small = FleetArrays.of([device(1, down=100.0, memory_bytes=160)], DType.F32)
    # 10 x 10 at a time: 4 tiles of 160 bytes each.
    assert lower_bound_s(form, small, 20, 20) == pytest.approx(6.4, rel=EXACT)


def test_more_devices_and_more_time_never_do_less() -> None:
    form = CostForm.of(gemm(m=64, n=97, k=13).forms()[0])
    fleet = FleetArrays.of([device(i, memory_bytes=9000 * (i + 1)) for i in range(3)], DType.F32)
    times = np.geomspace(1e-5, 10, 400)[:, None]
    areas = area_within(form, fleet, 64, 97, times)
    assert areas.shape == (400, 3)
    assert (np.diff(areas, axis=0) >= -1e-9 * math.prod((64, 97))).all()
