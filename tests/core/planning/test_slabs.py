"""Rectangles side by side, what stays in memory, and products cut along all axes."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.planning.fleets import arrays, device

from cleave.core.device import DeviceProfile
from cleave.core.fleet import Server, Site
from cleave.core.planning.cost import CostForm, FleetArrays, finish_s, tile_cost
from cleave.core.planning.held import cut_held, lower_bound_held_s
from cleave.core.planning.slabs import cut_slabs, even_groups
from cleave.core.planning.volume import product_bound_s
from cleave.errors import PlanError

FORM = CostForm(down=(0, 8, 8, 0), up=(0, 0, 0, 4), flops=16, memory=(10, 8, 8, 4))
LAYERS = CostForm(down=(0, 5, 90, 0), up=(0, 5, 90, 0), flops=50, memory=(7, 0, 120, 3))
SEEDS = st.integers(0, 10_000)


def unequal(n_devices: int, seed: int, memory: tuple[int, int]) -> list[DeviceProfile]:
    draw = random.Random(seed)
    return [
        device(
            i + 1,
            flops=draw.uniform(100, 1000),
            down=draw.uniform(20, 200),
            up=draw.uniform(5, 50),
            latency_s=draw.uniform(0, 0.5),
            memory_bytes=draw.randint(*memory),
        )
        for i in range(n_devices)
    ]


def held_bytes(form: CostForm, fleet: FleetArrays, cells: np.ndarray) -> np.ndarray:
    used = np.zeros(len(fleet))
    for index, row0, row1, col0, col1 in cells.tolist():
        used[index] += tile_cost(form.memory, row1 - row0, col1 - col0)
    return used


def covered(cells: np.ndarray, sides: tuple[int, int]) -> np.ndarray:
    counts = np.zeros(sides, dtype=int)
    for _, row0, row1, col0, col1 in cells.tolist():
        counts[row0:row1, col0:col1] += 1
    return counts


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 20), st.sampled_from([FORM, LAYERS]))
def test_what_is_held_fits_and_no_cut_is_below_the_bound(
    seed: int, n_devices: int, form: CostForm
) -> None:
    fleet = arrays(unequal(n_devices, seed, (200, 4000)))
    try:
        found = cut_held(form, fleet, (24, 12))
    except PlanError:
        return
    assert (covered(found.cells, (24, 12)) == 1).all()
    assert (held_bytes(form, fleet, found.cells) <= fleet.memory_bytes * (1 + 1e-9)).all()
    assert lower_bound_held_s(form, fleet, 24, 12) <= found.makespan_s


def test_what_fits_no_fleet_is_refused_with_how_much_is_missing() -> None:
    fleet = arrays(unequal(4, 0, (200, 300)))
    with pytest.raises(PlanError, match=r"fills [\d.]+ times the memory of 4 devices: lend"):
        cut_held(LAYERS, fleet, (24, 40))


def test_without_room_for_the_smallest_tile_is_refused() -> None:
    with pytest.raises(PlanError, match="the smallest tile needs"):
        cut_held(LAYERS, arrays([device(1, memory_bytes=100)]), (24, 12))


def test_memory_that_does_not_bind_changes_nothing() -> None:
    fleet = arrays(unequal(8, 3, (1 << 30, 1 << 31)))
    free = lower_bound_held_s(FORM, fleet, 24, 12)
    assert cut_held(FORM, fleet, (24, 12)).bound_s == pytest.approx(free, rel=2e-3)


def test_a_device_with_little_memory_is_given_what_it_can_hold() -> None:
    # Four rows of 24 need 10 + 8 * 4 + 8 * 24 + 4 * 96 = 618 bytes; the other does the rest.
    small, large = device(1, memory_bytes=618), device(2)
    fleet = arrays([small, large])
    used = held_bytes(FORM, fleet, cut_held(FORM, fleet, (24, 24)).cells)
    assert 0 < used[0] <= 618


@settings(max_examples=40)
@given(SEEDS, st.integers(2, 20), st.integers(2, 4), st.booleans())
def test_slabs_are_covered_by_groups_that_share_no_device(
    seed: int, n_devices: int, n_slabs: int, is_held: bool
) -> None:
    fleet = arrays(unequal(n_devices, seed, (300, 9000)))
    try:
        found = cut_slabs(FORM, fleet, (16, 8), n_slabs=n_slabs, is_held=is_held)
    except PlanError:
        return
    owners = [set(found.cells[found.slab == slab, 0].tolist()) for slab in range(n_slabs)]
    assert sum(len(each) for each in owners) == len(set().union(*owners))
    for slab in range(n_slabs):
        assert (covered(found.cells[found.slab == slab], (16, 8)) == 1).all()
    assert found.bound_s <= found.makespan_s


def test_more_slabs_than_devices_is_refused() -> None:
    with pytest.raises(
        PlanError, match="5 devices are needed that lend 30 B each, but there are 4"
    ):
        cut_slabs(FORM, arrays(unequal(4, 0, (900, 1000))), (8, 8), n_slabs=5)


def test_groups_are_about_even() -> None:
    capacity = np.array([9.0, 1, 1, 7, 2, 0, 4])
    groups = even_groups(capacity, 3)
    assert sorted(np.concatenate(groups).tolist()) == [0, 1, 2, 3, 4, 6]
    assert sorted(capacity[each].sum() for each in groups) == [7, 8, 9]


def test_behind_one_line_nothing_is_faster_than_the_line() -> None:
    devices = [device(i, down=1e6, up=1e6, site_id=1) for i in range(1, 21)]
    site = Site(site_id=1, downlink_bytes_per_s=200.0, uplink_bytes_per_s=20.0)
    sizes = (40, 40, 40)
    bound_s = product_bound_s([sizes], 4, arrays(devices, [site]))
    # All of the result comes up through the line at least once.
    assert bound_s >= 4 * 40 * 40 / 20.0 * (1 - 1e-3)
    served = arrays([device(i) for i in range(1, 21)], server=Server(nic_bytes_per_s=20.0))
    assert product_bound_s([sizes], 4, served) >= 4 * 40 * 40 / 40.0 * (1 - 1e-3)


@settings(max_examples=150)
@given(SEEDS, st.integers(1, 4), st.integers(1, 6), st.integers(1, 3))
def test_no_bricks_of_products_are_below_their_bound(
    seed: int, n_cuts: int, n_devices: int, n_products: int
) -> None:
    draw = random.Random(seed)
    fleet = arrays(unequal(n_devices, seed, (1, 2)))
    down, up, flops = np.zeros(n_devices), np.zeros(n_devices), np.zeros(n_devices)

    def pieces(size: int) -> list[int]:
        ends = sorted({0, size, *(draw.randint(0, size) for _ in range(draw.randint(0, n_cuts)))})
        return [b - a for a, b in itertools.pairwise(ends)]

    sides = [[draw.randint(4, 24) for _ in range(3)] for _ in range(n_products)]
    products = [(m, n, k) for m, n, k in sides]
    for m, n, k in products:
        for m0, n0, k0 in itertools.product(pieces(m), pieces(n), pieces(k)):
            who = draw.randrange(n_devices)
            down[who] += 4 * k0 * (m0 + n0)
            up[who] += 4 * m0 * n0
            flops[who] += 2 * m0 * n0 * k0
    assert product_bound_s(products, 4, fleet) <= finish_s(fleet, down, up, flops)


def test_one_device_sends_both_operands_and_returns_the_result() -> None:
    one = arrays([device(1, flops=1e12, down=100.0, up=50.0)])
    # An area a and a length l of its inner axis: 20 x 20 x 20 is all, and nothing is held.
    assert product_bound_s([(20, 20, 20)], 4, one) == pytest.approx(
        max(4 * 2 * 400 / 100, 4 * 400 / 50), rel=1e-3
    )


def test_bytes_fall_as_the_two_thirds_power_of_the_devices() -> None:
    few, many = (
        product_bound_s(
            [(1 << 16,) * 3], 2, arrays([device(i, flops=1e17, up=2e5) for i in range(n)])
        )
        for n in (512, 4096)
    )
    assert math.log(few / many, 8) == pytest.approx(2 / 3, abs=0.02)
