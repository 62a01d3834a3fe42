"""Work whose inner axis is cut in slabs: its regions, its cost, and plans that cover it once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.planning.fleets import arrays, device, gemm, homes

from cleave.core.layout import Layout
from cleave.core.matrix import Matrix, Region
from cleave.core.planning.choice import Planner
from cleave.core.planning.cost import CostForm
from cleave.core.planning.slabs import numbers_of_slabs
from cleave.core.planning.strips import strips
from cleave.core.scheduling.placing import merged
from cleave.core.work import Work
from cleave.errors import PlanError

SIZES = st.integers(1, 40)


class Nothing:
    """Holds nothing."""

    def holds_any(self, matrix: Matrix) -> bool:
        return False

    def missing_bytes(self, matrix: Matrix, view: Region) -> int:
        return matrix.region_bytes(view)


def assert_covers_once(work: Work, tiles: list[Region]) -> None:
    counts = np.zeros((work.n_rows, work.n_cols), dtype=int)
    for tile in tiles:
        counts[tile.row0 : tile.row1, tile.col0 : tile.col1] += 1
        assert any(slab.contains(tile) for slab in work.rectangles), tile
    assert (counts == 1).all()


def tiles_of(layout: Layout) -> list[Region]:
    return [placement.tile for placement in layout]


def test_a_tile_reads_and_writes_what_belongs_to_its_slab() -> None:
    # k = 10 in 3 slabs of depth 4, 4 and 2; columns 6..11 are the second slab of n = 6.
    work = gemm(5, 6, 10).forms()[0].in_slabs(3)
    a, b = (operand.region(Region(1, 3, 8, 11)) for operand in work.inputs)
    assert (a, b) == (Region(1, 3, 4, 8), Region(4, 8, 2, 5))
    assert work.results[0].region(Region(1, 3, 8, 11)) == Region(1, 3, 2, 5)
    assert work.inputs[0].region(Region(0, 5, 12, 18)) == Region(0, 5, 8, 10)
    assert work.is_partial(work.results[0])


def test_the_flops_of_slabs_are_those_of_the_product() -> None:
    product = gemm(5, 6, 10)
    work = product.forms()[0].in_slabs(3)
    assert sum(work.flops(slab) for slab in work.rectangles) == product.flops


@given(SIZES, SIZES, SIZES, st.integers(1, 50))
def test_no_slab_is_empty_and_together_they_are_the_inner_axis(
    m: int, n: int, k: int, count: int
) -> None:
    work = gemm(m, n, k).forms()[0].in_slabs(count)
    spans = [work.inputs[1].region(slab) for slab in work.rectangles]
    assert [span.row0 for span in spans] == [0, *(span.row1 for span in spans[:-1])]
    assert spans[-1].row1 == k
    assert all(span.n_rows > 0 for span in spans)


def test_slabs_of_slabs_are_slabs_of_the_whole() -> None:
    whole = gemm(5, 6, 12).forms()[0]
    assert whole.in_slabs(2).in_slabs(3) == whole.in_slabs(3)


def test_work_without_a_whole_inner_axis_is_not_cut_in_slabs() -> None:
    with pytest.raises(PlanError, match="no inner axis"):
        gemm(5, 6, 10).forms()[1].in_slabs(2)


def test_the_cost_is_that_of_a_full_slab() -> None:
    # Depth 4: 16 bytes per row of A and per column of B, 4 per partial sum, 8 flops.
    form = CostForm.of(gemm(5, 6, 10).forms()[0].in_slabs(3))
    assert (form.down, form.up, form.flops) == ((0, 16, 16, 0), (0, 0, 0, 4), 8)


@settings(max_examples=30, deadline=None)
@given(st.integers(17, 60), st.integers(0, 1000), SIZES, SIZES, st.integers(2, 40))
def test_the_plan_in_slabs_covers_every_slab_once(
    n_devices: int, seed: int, m: int, n: int, count: int
) -> None:
    work = gemm(m, n, 40).forms()[0].in_slabs(count)
    layout = Planner()._fresh(work, homes(n_devices, seed)) or ()
    if layout:  # else there are fewer devices than slabs
        assert_covers_once(work, tiles_of(layout))


def test_many_devices_take_slabs_when_those_are_done_sooner() -> None:
    devices = [device(i, flops=1e15, down=1e6, up=1e6) for i in range(1, 257)]
    product = gemm(512, 512, 4096)
    choice = Planner().choose(product.forms(), (), [(each, Nothing()) for each in devices])
    assert choice is not None
    assert choice.work.slabs is not None
    assert choice.work.slabs.count > 1
    assert choice.form >= len(product.forms())
    assert_covers_once(choice.work, tiles_of(choice.layout))


def test_few_devices_are_not_asked_about_slabs() -> None:
    assert numbers_of_slabs((512, 512, 4096), arrays(homes(16)), 16) == ()
    assert numbers_of_slabs((512, 512, 4096), arrays(homes(17)), 17)


def test_tiles_of_different_slabs_are_not_merged() -> None:
    tiles = [Region(0, 4, 0, 3), Region(0, 4, 3, 6), Region(0, 4, 6, 12)]
    assert merged(tiles, 6) == [Region(0, 4, 0, 6), Region(0, 4, 6, 12)]
    assert merged(tiles, 12) == [Region(0, 4, 0, 12)]


def test_part_of_a_slab_is_cut_and_stripped_within_it() -> None:
    work = gemm(20, 30, 40).forms()[0].in_slabs(4)
    devices = homes(5)
    part = Region(3, 20, 65, 90)
    tiles = [
        strip
        for placement in Planner().tiles(work, part, devices)
        for strip in strips(placement.tile, CostForm.of(work), devices[0], work=work, target_s=0.0)
    ]
    assert sum(tile.area for tile in tiles) == part.area
    assert all(part.contains(tile) for tile in tiles)
