"""What a cut makes every device do, and when the last is done."""

import numpy as np
import pytest
from tests.core.step.shapes import device

from cleave.core.fleet import Fleet, Server, Site
from cleave.core.matrix import DType
from cleave.core.planning.cost import CostForm
from cleave.core.step.plan import Loads
from cleave.core.step.tiled import Rectangle, Tiler
from cleave.errors import PlanError

FORM = CostForm(down=(0, 2, 2, 0), up=(0, 0, 0, 1), flops=4.0, memory=(0, 2, 2, 1))


def loads(down: list[float], up: list[float], flops: list[float]) -> Loads:
    return Loads(np.array(down), np.array(up), np.array(flops), np.zeros(len(down)))


def test_loads_of_a_cut_add_up_to_the_rectangle() -> None:
    tiler = Tiler(Fleet((device(1), device(2), device(3))), DType.BF16)
    asked = tiler.loads(tiler.cut(Rectangle(FORM, (60, 40))), FORM)
    assert asked.up_bytes.sum() == 60 * 40
    assert asked.flops.sum() == 4 * 60 * 40


def test_equal_rectangles_are_cut_once() -> None:
    tiler = Tiler(Fleet((device(1), device(2))), DType.BF16)
    assert tiler.cut(Rectangle(FORM, (60, 40))) is tiler.cut(Rectangle(FORM, (60, 40)))


def test_the_busiest_of_link_and_processor_ends_it() -> None:
    tiler = Tiler(Fleet((device(1), device(2, latency_s=3.0))), DType.BF16)
    # 100 bytes/s down, 50 up, 1,000 flop/s: 2 s down, 4 s up, 1 s of arithmetic.
    assert tiler.seconds(loads([200, 0], [200, 0], [1000, 0])) == 4
    assert tiler.seconds(loads([200, 200], [0, 0], [0, 0])) == 5


def test_what_is_busy_does_not_wait_for_round_trips() -> None:
    tiler = Tiler(Fleet((device(1), device(2, latency_s=3.0))), DType.BF16)
    assert tiler.busy_s(loads([200, 200], [0, 0], [0, 0])) == 2


def test_what_is_busy_is_the_mean_of_the_devices_with_work_or_the_server() -> None:
    devices = tuple(device(i, site_id=int(i == 1)) for i in (1, 2, 3))
    line = Site(site_id=1, downlink_bytes_per_s=10, uplink_bytes_per_s=50)
    tiler = Tiler(Fleet(devices, (line,)), DType.BF16)
    # 100 bytes take 10 s on the first one's line; the second computes for 4 s.
    asked = loads([100, 100, 0], [0, 0, 0], [0, 4000, 0])
    assert tiler.busy_s(asked) == 7
    slow = Tiler(Fleet(devices, (line,), Server(nic_bytes_per_s=20)), DType.BF16)
    assert slow.busy_s(asked) == 10
    assert slow.busy_s(Loads.none(3)) == 0


def test_a_site_and_the_server_carry_the_bytes_of_all_their_devices() -> None:
    line = Site(site_id=1, downlink_bytes_per_s=20, uplink_bytes_per_s=10)
    behind = tuple(device(i, site_id=1) for i in (1, 2))
    tiler = Tiler(Fleet(behind, (line,)), DType.BF16)
    assert tiler.seconds(loads([100, 100], [0, 0], [0, 0])) == 10
    assert tiler.seconds(loads([0, 0], [60, 60], [0, 0])) == 12
    busy = Tiler(Fleet((device(1), device(2)), (), Server(nic_bytes_per_s=8)), DType.BF16)
    assert busy.seconds(loads([100, 100], [0, 0], [0, 0])) == 25


def test_nothing_to_do_takes_no_time() -> None:
    tiler = Tiler(Fleet((device(1, latency_s=3.0),)), DType.BF16)
    assert tiler.seconds(Loads.none(1)) == 0


def test_tiles_that_stay_are_in_memory_together() -> None:
    # All of it needs 2 * 20 + 2 * 20 + 400 = 480 bytes, so a device that lends 200 does several
    # tiles: one by one they fit, all at once they do not.
    tiler = Tiler(Fleet((device(1, memory_bytes=200),)), DType.BF16)
    tiling = tiler.cut(Rectangle(FORM, (20, 20)))
    assert tiler.loads(tiling, FORM).memory_bytes[0] <= 200
    with pytest.raises(PlanError, match=r"fills .* times the memory"):
        tiler.cut(Rectangle(FORM, (20, 20), is_held=True))


def test_what_stays_goes_to_those_who_have_room() -> None:
    fleet = Fleet(tuple(device(i, memory_bytes=60 + 80 * i) for i in (1, 2, 3, 4)))
    tiler = Tiler(fleet, DType.BF16)
    held = tiler.cut(Rectangle(FORM, (20, 20), is_held=True))
    memory = tiler.loads(held, FORM).memory_bytes
    assert all(used <= each.memory_bytes for used, each in zip(memory, fleet.devices, strict=True))
    assert (held.rows * held.cols).sum() == 400


def test_slabs_are_done_side_by_side_by_devices_of_their_own() -> None:
    tiler = Tiler(Fleet(tuple(device(i) for i in range(1, 13))), DType.BF16)
    tiling = tiler.cut(Rectangle(FORM, (12, 10), n_slabs=3))
    slab = tiling.spans[:, 2] // 10
    assert ((tiling.spans[:, 3] - 1) // 10 == slab).all()
    assert [int((tiling.rows * tiling.cols)[slab == i].sum()) for i in range(3)] == [120, 120, 120]
    assert all(len(set(slab[tiling.index == i].tolist())) <= 1 for i in range(12))


def test_who_cannot_hold_a_tile_of_a_slab_is_told_why() -> None:
    devices = (device(1), device(2), device(3, memory_bytes=1))
    tiler = Tiler(Fleet(devices), DType.BF16)
    tiling = tiler.cut(Rectangle(FORM, (12, 10), n_slabs=2))
    assert tiler.left_out(tiling) == ((3, "lends 1 B, the smallest tile needs 5 B"),)
