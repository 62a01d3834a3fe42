"""The price of a layout is that of its tiles one by one, whatever devices hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleave.core.device import DeviceProfile
from cleave.core.layout import Placement
from cleave.core.matrix import BlockRef, DType, Matrix, Region
from cleave.core.operations import Gemm
from cleave.core.planning.price import price, regions_of
from cleave.core.scheduling.residency import Ledger, Need
from cleave.core.work import Fate, TaskOutput, Work

F32 = DType.F32
M, K, N = 12, 30, 8


def forms() -> tuple[Work, ...]:
    a, b, out = (
        Matrix(i, *shape, F32) for i, shape in enumerate(((M, K), (K, N), (M, N)), start=1)
    )
    plain = Gemm(name="gemm", a=a, b=b, out=out).forms()
    return (*plain, plain[0].in_slabs(4))


def tiles(work: Work) -> list[Region]:
    """Every slab in 2 x 2."""
    found = []
    for slab in work.rectangles:
        rows, cols = slab.n_rows // 2, slab.col0 + slab.n_cols // 2
        for row0, row1 in ((0, rows), (rows, slab.n_rows)):
            for col0, col1 in ((slab.col0, cols), (cols, slab.col1)):
                found.append(Region(row0, row1, col0, col1))
    return found


@pytest.mark.parametrize("form", range(4))
def test_regions_of_many_tiles_are_those_of_each(form: int) -> None:
    work = forms()[form]
    some = tiles(work)
    spans = np.array([(t.row0, t.row1, t.col0, t.col1) for t in some])
    for operand in (*work.inputs, *work.results):
        found = [Region(*row) for row in regions_of(operand, spans).tolist()]
        assert found == [operand.region(tile) for tile in some]


@given(
    form=st.integers(0, 3),
    owners=st.lists(st.integers(1, 3), min_size=16, max_size=16),
    held=st.sampled_from([None, (1, 0), (2, 1), (3, 0)]),
)
def test_the_price_is_that_of_tile_after_tile(
    form: int, owners: list[int], held: tuple[int, int] | None
) -> None:
    work = forms()[form]
    devices = [
        (
            DeviceProfile(device_id=i, flops_per_s={F32: 1e4 * i}, memory_bytes=1 << 20),
            Ledger(1 << 20),
        )
        for i in (1, 2, 3)
    ]
    if held is not None:  # a device has what some tile reads of an input
        device_id, index = held
        view = work.inputs[index].region(tiles(work)[-1])
        need = Need(work.inputs[index].matrix, view, view)
        output = TaskOutput(BlockRef(Matrix(9, 1, 1, F32), Region(0, 1, 0, 1)), Fate.RETURNED)
        assert devices[device_id - 1][1].load(1, (need,), (output,), 0) is not None
    layout = tuple(Placement(tile, owner) for tile, owner in zip(tiles(work), owners, strict=False))
    seconds, n_bytes = 0.0, 0
    for profile, ledger in devices:
        mine = [p.tile for p in layout if p.device_id == profile.device_id]
        reads = {(o.matrix, o.region(tile)) for tile in mine for o in work.inputs}
        down = sum(ledger.missing_bytes(*read) for read in reads)
        up = sum(r.block(tile).n_bytes for tile in mine for r in work.results)
        flops = sum(work.flops(tile) for tile in mine)
        busiest_s = max(
            down / profile.downlink_bytes_per_s,
            flops / profile.flops_per_s[F32],
            up / profile.uplink_bytes_per_s,
        )
        seconds = max(seconds, profile.latency_s + busiest_s) if mine else seconds
        n_bytes += down + up
    found_s, found_bytes = price(work, layout, devices)
    assert found_s == pytest.approx(seconds)
    assert found_bytes == n_bytes
