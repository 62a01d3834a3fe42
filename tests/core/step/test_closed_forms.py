"""Equal devices without round trips, where a step's time can be written down.

Llama-2-7B's layers without attention and head, 131,072 tokens, bf16, homes with 100 Mbit/s down and
20 Mbit/s up, arithmetic and server free; see docs/planner.md for the formulas and for the one
published figure that they do not confirm.
"""

import math

import numpy as np
import pytest
from tests.core.step.shapes import LLAMA_2_7B, homes

from cleave.core.matrix import DType
from cleave.core.planning.bound import lower_bound_s
from cleave.core.planning.cost import FleetArrays
from cleave.core.planning.volume import product_bound_s
from cleave.core.step import grid
from cleave.core.step.batch import Batch
from cleave.core.step.chains import Chain
from cleave.core.step.forms import gemm_forms
from cleave.core.step.tiled import Rectangle, Tiler

TOKENS = 131072
DOWN, UP = 12.5e6, 2.5e6  # bytes/s
PRODUCTS = [
    sizes
    for linear in LLAMA_2_7B.linears
    for sizes in (
        (TOKENS, linear.n, linear.k),
        (TOKENS, linear.k, linear.n),
        (linear.k, linear.n, TOKENS),
    )
]


def fleet_arrays(n_devices: int) -> FleetArrays:
    return FleetArrays.of(homes(n_devices), DType.BF16)


def block_s(m: int, n: int, k: int, n_devices: int) -> float:
    """A P-th of the result from each, in the squarest tile, inner axis whole."""
    area = m * n / n_devices
    side = min(math.sqrt(area), m, n)
    return max(2 * k * (side + area / side) / DOWN, 2 * area / UP)


@pytest.mark.parametrize("n_devices", [32, 256, 1024, 8192])
def test_products_with_the_inner_axis_whole(n_devices: int) -> None:
    arrays = fleet_arrays(n_devices)
    closed = planned = 0.0
    for m, n, k in PRODUCTS:
        form, *_ = gemm_forms(m, n, k, DType.BF16)
        closed += 32 * block_s(m, n, k, n_devices)
        planned += 32 * lower_bound_s(form, arrays, m, n)
    assert planned == pytest.approx(closed, rel=0.01)
    published = {32: 9723, 256: 3438, 1024: 1719, 8192: 608}[n_devices]
    if n_devices > 32:  # there it counts downlink alone, of tiles wider than the matrix
        assert planned == pytest.approx(published, rel=0.1)
    else:
        assert planned > published


@pytest.mark.parametrize(
    ("n_devices", "published"), [(32, 8731), (256, 1481), (1024, 578), (8192, 145)]
)
def test_products_cut_along_all_axes(n_devices: int, published: float) -> None:
    arrays = fleet_arrays(n_devices)
    planned = sum(32 * product_bound_s([sizes], 2, arrays) for sizes in PRODUCTS)
    assert planned == pytest.approx(published, rel=0.1)


@pytest.mark.parametrize("n_devices", [256, 1024, 8192])
def test_cuts_along_all_axes_come_near_what_they_can(n_devices: int) -> None:
    tiler = Tiler(homes(n_devices), DType.BF16)
    arrays = fleet_arrays(n_devices)
    m, n, k = PRODUCTS[6]
    bound_s = product_bound_s([(m, n, k)], 2, arrays)
    side = (2 * m * n * k / n_devices * UP / DOWN) ** (1 / 3)
    most = max(1, round(n_devices / (m * n / side**2)))
    seconds = []
    for n_slabs in {most, max(1, most // 2), 2 * most}:
        form, *_ = gemm_forms(m, n, -(-k // n_slabs), DType.BF16)
        tiling = tiler.cut(Rectangle(form, (m, n), n_slabs=n_slabs))
        seconds.append(tiler.seconds(tiler.loads(tiling, form)))
    assert bound_s <= min(seconds) <= 1.25 * bound_s


def grid_s(n_devices: int) -> float:
    """``b (W / k + c M h / a)`` bytes each way: a k devices have a layer, each a k-th of it."""
    weights, per_layer = LLAMA_2_7B.layer_parameters, n_devices / LLAMA_2_7B.n_layers
    shares = np.geomspace(1, 32, 200)
    copies = np.where(shares == 1, 2, 4)
    moved = weights / shares + copies * TOKENS * 4096 * shares / per_layer
    return float(2 * moved.min() / UP)


@pytest.mark.parametrize(
    ("n_devices", "published"), [(32, 1021), (256, 269), (1024, 186), (8192, 66)]
)
def test_layers_that_stay(n_devices: int, published: float) -> None:
    assert grid_s(n_devices) == pytest.approx(published, rel=0.1)
    batch = Batch(tokens=TOKENS, length=32)  # so short that a pipeline fills at once
    fleet = homes(n_devices)
    plan = grid.plan(LLAMA_2_7B, batch, Tiler(fleet, DType.BF16))
    up_s = plan.loads.up_bytes.max() / UP
    # Segments need not be one layer long, so with few devices the plan needs fewer bytes.
    assert up_s <= 1.1 * published
    if n_devices > 32:
        assert up_s == pytest.approx(published, rel=0.1)


def test_the_bytes_of_a_layer_are_those_of_the_closed_form() -> None:
    chain = Chain.of(LLAMA_2_7B, Batch(tokens=TOKENS, length=4096))
    forward, backward = chain.passes(keeps=True)
    both_up = forward.up[1] + backward.up[1]
    assert both_up * 32 + backward.up[2] == 2 * (LLAMA_2_7B.layer_parameters + 2 * TOKENS * 4096)
