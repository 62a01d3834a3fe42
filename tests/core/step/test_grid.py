"""Segments of layers on devices, and the sequences that flow through them."""

from dataclasses import replace

import numpy as np
import pytest
from tests.core.step.shapes import LLAMA_2_7B, TINY, device, homes

from cleave.core.fleet import Fleet, Server
from cleave.core.matrix import DType
from cleave.core.step import grid
from cleave.core.step.batch import Batch
from cleave.core.step.chains import Chain
from cleave.core.step.model import ModelShape
from cleave.core.step.plan import FamilyPlan
from cleave.core.step.tiled import Tiler
from cleave.errors import PlanError

BATCH = Batch(tokens=64, length=4)


def planned(model: ModelShape, fleet: Fleet, batch: Batch) -> FamilyPlan:
    return grid.plan(model, batch, Tiler(fleet, batch.wire))


def pcs(n_devices: int, **changes: object) -> Fleet:
    return Fleet(tuple(device(i + 1, **changes) for i in range(n_devices)), (), Server())


def test_a_chain_has_the_bytes_and_operations_of_its_layer() -> None:
    chain = Chain.of(LLAMA_2_7B, Batch(tokens=8192, length=4096))
    assert chain.hidden_bytes == 2 * 4096 * 4096
    assert chain.sent_weights_bytes == 2 * 4096 * (4 * 4096 + 3 * 11008)
    linear = 2 * 4096 * 4096 * (4 * 4096 + 3 * 11008)
    attention = 4 * 4096 * 4096 * 4096
    assert chain.forward_flops == linear + attention
    assert chain.backward_flops == 2 * linear + 2.5 * attention


def test_with_adapters_weights_stay_for_good_and_adapters_travel() -> None:
    frozen = Chain.of(LLAMA_2_7B, Batch(tokens=8192, length=4096, lora_rank=16))
    full = Chain.of(LLAMA_2_7B, Batch(tokens=8192, length=4096))
    assert frozen.resident_weights_bytes == full.sent_weights_bytes
    assert 0 < frozen.sent_weights_bytes < full.sent_weights_bytes / 50


def test_all_slices_of_a_layer_compute_what_the_layer_does_for_twice_the_activations() -> None:
    chain = Chain.of(LLAMA_2_7B, BATCH)
    slices = chain.sliced(32)
    assert 32 * slices.forward_flops == chain.forward_flops
    assert 32 * slices.sent_weights_bytes == chain.sent_weights_bytes
    assert slices.hidden_bytes == 2 * chain.hidden_bytes


def test_layers_that_are_not_kept_are_sent_and_computed_again() -> None:
    chain = Chain.of(LLAMA_2_7B, BATCH)
    (_, kept), (_, again) = chain.passes(keeps=True), chain.passes(keeps=False)
    assert again.down[1] == 2 * kept.down[1]
    assert again.flops == kept.flops + chain.forward_flops
    assert again.memory[3] == 0 < kept.memory[3]


def test_every_sequence_goes_through_every_layer_once() -> None:
    plan = planned(TINY, pcs(5), BATCH)
    chain = Chain.of(TINY, BATCH)
    flops = (chain.forward_flops + chain.backward_flops) * BATCH.n_sequences * TINY.n_layers
    assert plan.loads.flops.sum() == pytest.approx(flops)


def test_one_device_does_all_layers_with_no_other_to_wait_for() -> None:
    plan = planned(TINY, pcs(1), BATCH)
    chain = Chain.of(TINY, BATCH)
    assert plan.loads.down_bytes[0] == pytest.approx(
        2 * chain.sent_weights_bytes + 2 * 16 * chain.hidden_bytes
    )
    assert "1 segments of 2 layers" not in plan.summary
    assert "1 segment of 2 layers" in plan.summary


def test_a_device_with_room_for_one_layer_has_one() -> None:
    chain = Chain.of(TINY, BATCH)
    room = int(chain.workspace_bytes + 1.5 * chain.held_weights_bytes + 3 * chain.kept_bytes)
    plan = planned(TINY, pcs(16, memory_bytes=room), BATCH)
    assert (plan.loads.memory_bytes <= room).all()
    assert "of 1 layer" in plan.summary or "slices" in plan.summary


def test_layers_that_fit_nowhere_are_refused() -> None:
    with pytest.raises(PlanError, match="memory"):
        planned(TINY, pcs(2, memory_bytes=500), BATCH)


def test_what_layers_lack_is_said_once_for_whole_layers_and_once_for_slices() -> None:
    long = Batch(tokens=1024, length=1024)  # weights fit, one sequence does not
    with pytest.raises(PlanError, match=r"^whole layers: the smallest tile .* has room") as refusal:
        planned(TINY, pcs(8, memory_bytes=8000), long)
    assert str(refusal.value).count("smallest tile") == 2
    assert "; slices of layers: the smallest tile" in str(refusal.value)


@pytest.mark.parametrize("n_devices", [1, 3, 16, 64])
@pytest.mark.parametrize("memory", [1 << 40, 9000])
def test_no_plan_is_below_the_bound(n_devices: int, memory: int) -> None:
    rng = np.random.default_rng(n_devices)
    devices = tuple(
        device(
            i + 1,
            memory_bytes=memory,
            latency_s=float(rng.uniform(0, 0.1)),
            downlink_bytes_per_s=float(rng.lognormal(5, 1)),
            uplink_bytes_per_s=float(rng.lognormal(4, 1)),
            flops_per_s={DType.BF16: float(rng.lognormal(9, 1))},
        )
        for i in range(n_devices)
    )
    fleet = Fleet(devices, (), Server(nic_bytes_per_s=2000.0))
    try:
        plan = planned(TINY, fleet, BATCH)
    except PlanError:
        assert memory < 1 << 40
        return
    assert plan.bound_s <= plan.step_s
    assert all(part.bound_s <= part.seconds for part in plan.parts)


def test_a_fast_device_gets_more_than_a_slow_one() -> None:
    fast = device(1, flops_per_s={DType.BF16: 4000.0}, uplink_bytes_per_s=400.0)
    slow = device(2, flops_per_s={DType.BF16: 1000.0}, uplink_bytes_per_s=100.0)
    loads = planned(TINY, Fleet((fast, slow), (), Server()), BATCH).loads
    assert loads.flops[0] > 2 * loads.flops[1]


def test_short_sequences_fill_a_pipeline_sooner_than_long_ones() -> None:
    short = planned(LLAMA_2_7B, homes(64), Batch(tokens=131072, length=128))
    long = planned(LLAMA_2_7B, homes(64), Batch(tokens=131072, length=4096))
    assert short.step_s < long.step_s


def test_the_same_question_has_the_same_answer() -> None:
    one, other = (planned(TINY, pcs(7), BATCH) for _ in range(2))
    assert one.step_s == other.step_s
    assert one.loads.down_bytes.tolist() == other.loads.down_bytes.tolist()


def test_a_server_that_is_slow_takes_as_long_as_its_bytes() -> None:
    fleet = replace(pcs(16), server=Server(nic_bytes_per_s=50.0))
    plan = planned(TINY, fleet, BATCH)
    assert plan.step_s >= plan.egress_bytes / 100.0
    assert plan.parts[0].server_s[0] <= plan.parts[0].seconds
