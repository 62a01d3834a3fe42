"""The best plan of a step, and what is said of it."""

from dataclasses import replace

import pytest
from tests.core.step.shapes import LLAMA_2_7B, device, homes

from cleave.catalog.models import model_shape
from cleave.core.device import DeviceProfile
from cleave.core.fleet import Fleet, Server, Site
from cleave.core.matrix import DType
from cleave.core.step.batch import Batch
from cleave.core.step.blocks import BlockPlanner, operations
from cleave.core.step.choice import best_plan
from cleave.core.step.estimate import Sample
from cleave.core.step.plan import StepPlan
from cleave.core.step.tiled import Tiler
from cleave.errors import PlanError

BATCH = Batch(tokens=16384, length=1024)
SMALL = replace(LLAMA_2_7B, n_layers=2)


def unequal(n_devices: int) -> Fleet:
    """Homes whose rates differ up to threefold, and a server with limits."""
    devices = tuple(
        replace(
            each,
            kind="laptop" if i % 2 else "phone",
            flops_per_s={DType.BF16: 1e12 * (1 + i % 3)},
            uplink_bytes_per_s=2.5e6 * (1 + i % 2),
            latency_s=0.02,
            memory_bytes=4 << 30,
        )
        for i, each in enumerate(homes(n_devices).devices)
    )
    server = Server(
        nic_bytes_per_s=1.25e9, memory_bytes=1e12, memory_bytes_per_s=1e11, flops_per_s=1e12
    )
    return Fleet(devices, (), server)


def test_every_family_is_priced_and_the_fastest_is_taken() -> None:
    plan = best_plan(SMALL, unequal(24), BATCH)
    families = {plan.best.family, *(each.family for each in plan.alternatives)}
    assert families == {"block", "ksplit", "mixed", "grid"}
    assert all(each.step_s is None or each.step_s >= plan.best.step_s for each in plan.alternatives)
    assert all(each.reason for each in plan.alternatives)


def test_the_step_is_what_devices_and_host_take_and_never_below_the_bound() -> None:
    best = best_plan(SMALL, unequal(24), BATCH).best
    assert best.bound_s <= best.step_s
    assert best.host_s > 0
    assert best.step_s == pytest.approx(
        best.host_s + sum(part.times * part.seconds for part in best.parts)
    )


def test_no_device_holds_more_than_it_lends() -> None:
    fleet = unequal(24)
    best = best_plan(SMALL, fleet, BATCH).best
    assert all(
        held <= device.memory_bytes
        for held, device in zip(best.loads.memory_bytes, fleet.devices, strict=True)
    )


def test_the_summary_names_each_product_once_with_its_form() -> None:
    fleet = unequal(24)
    summary = BlockPlanner(
        operations(SMALL, BATCH, Sample(fleet, BATCH.wire), recomputes=False),
        Sample(fleet, BATCH.wire),
        Tiler(fleet, BATCH.wire),
    ).plan("block").summary  # fmt: skip
    assert summary == (
        "qkv, out, up, down: inner axis whole; attention: a sequence and KV head; "
        "head: blocks of the vocabulary"
    )


def test_a_head_that_devices_cannot_keep_is_sent_twice() -> None:
    # Logits alone are 16,384 x 32,000 x 2 bytes, 1.05 GB; 24 devices lend 38 MB each.
    small = replace(
        unequal(24),
        devices=tuple(replace(each, memory_bytes=38_000_000) for each in unequal(24).devices),
    )
    assert (
        "head: blocks of the vocabulary, sent twice" in best_plan(SMALL, small, BATCH).best.summary
    )


def test_with_adapters_fewer_bytes_travel() -> None:
    full = best_plan(SMALL, unequal(24), BATCH).best
    adapters = best_plan(SMALL, unequal(24), replace(BATCH, lora_rank=16)).best
    assert adapters.egress_bytes < full.egress_bytes
    assert adapters.step_s < full.step_s


def test_the_gains_add_up_to_the_step() -> None:
    # The time is homogeneous in all rates: twice of everything halves it. Round trips, memory and
    # whole tiles keep it from being exact.
    fleet = unequal(24)
    without_latency = replace(
        fleet, devices=tuple(replace(each, latency_s=0.0) for each in fleet.devices)
    )
    plan = best_plan(SMALL, without_latency, BATCH)
    rates = sum(gain.step_s_gain for gain in plan.gains if gain.resource != "memory")
    assert rates == pytest.approx(-1.0, abs=0.1)


def test_a_server_that_cannot_keep_up_is_the_bottleneck_and_the_gain() -> None:
    fleet = unequal(24)
    slow = replace(fleet, server=replace(fleet.server, nic_bytes_per_s=1e6))
    plan = best_plan(SMALL, slow, BATCH)
    assert plan.bottleneck.resource in {"server egress", "server ingress"}
    assert plan.gains[0].resource in {"server egress", "server ingress"}


def pipeline() -> StepPlan:
    """4 sequences through layers of which each of 16 devices can hold one: most of them idle."""
    devices = tuple(
        device(
            i,
            flops_per_s={DType.BF16: 2e13},
            memory_bytes=5 * 10**9,
            downlink_bytes_per_s=1e9,
            uplink_bytes_per_s=1e9,
        )
        for i in range(1, 17)
    )
    batch = Batch(tokens=32_768, length=8192)
    return best_plan(model_shape("llama-3.2-1b"), Fleet(devices), batch)


def test_sequences_that_wait_for_each_other_are_most_of_a_long_pipeline_s_step() -> None:
    plan = pipeline()
    assert plan.best.family == "grid"
    found = plan.bottleneck
    assert found.wait_share > 0.5 > found.busy_share
    assert found.busy_share + found.wait_share + found.host_share <= 1 + 1e-9


def test_little_waits_where_one_product_follows_the_other_without_round_trips() -> None:
    fleet = unequal(24)
    near = replace(fleet, devices=tuple(replace(each, latency_s=0.0) for each in fleet.devices))
    plan = best_plan(SMALL, near, BATCH)
    assert plan.best.family != "grid"
    assert plan.bottleneck.wait_share < 0.1  # tiles are whole, so some devices are done sooner
    assert plan.bottleneck.host_share == plan.best.host_s / plan.best.step_s


def test_a_line_that_many_share_is_the_limit_though_each_device_s_own_is_idle() -> None:
    line = Site(site_id=1, downlink_bytes_per_s=12.5e6, uplink_bytes_per_s=1e6)
    fleet = unequal(24)
    behind = tuple(replace(each, site_id=1) for each in fleet.devices)
    found = best_plan(SMALL, Fleet(behind, (line,), fleet.server), BATCH).bottleneck
    assert found.resource == "uplink"
    assert found.busy_share > 0.5


def test_round_trips_are_waited_for() -> None:
    fleet = unequal(24)
    far = replace(fleet, devices=tuple(replace(each, latency_s=30.0) for each in fleet.devices))
    found = best_plan(SMALL, far, BATCH).bottleneck
    assert found.wait_share > 0.5


def test_an_estimate_is_told_from_a_plan() -> None:
    found = pipeline().alternatives
    assert {each.is_estimate for each in found} == {True, False}
    for each in found:
        assert each.is_estimate == each.reason.startswith("about ")


def test_an_unknown_host_speed_gives_no_figure_for_the_host_alone() -> None:
    fleet = unequal(24)
    unknown = replace(fleet, server=replace(fleet.server, flops_per_s=float("inf")))
    assert best_plan(SMALL, unknown, BATCH).host_alone_s is None
    known = best_plan(SMALL, fleet, BATCH)
    assert known.host_alone_s == pytest.approx(
        SMALL.step_flops(16384, 1024) / 1e12, rel=0.5
    )  # and the memory traffic


def test_a_host_without_room_is_refused_with_a_remedy() -> None:
    fleet = unequal(24)
    small = replace(fleet, server=replace(fleet.server, memory_bytes=1e9))
    with pytest.raises(PlanError, match="use a host with more memory"):
        best_plan(SMALL, small, BATCH)


def test_devices_without_room_are_told_once_what_is_missing_and_what_would_do() -> None:
    small = tuple(replace(each, memory_bytes=100_000) for each in unequal(24).devices)
    with pytest.raises(PlanError) as refusal:
        best_plan(SMALL, replace(unequal(24), devices=small), replace(BATCH, wire=DType.BF16))
    text = str(refusal.value)
    assert text.startswith("no plan fits this fleet: ")
    assert "but no device has room for more than 100 kB (block, ksplit, mixed)" in text
    assert "times the memory of 24 devices (grid)" in text
    for remedy in ("more devices", "--lora", "--length"):
        assert remedy in text
    for none in ("--memory", "--wire", "e+0", "bytes"):
        assert none not in text
    assert text.count("smallest tile") == 1


def test_a_family_that_does_not_fit_says_what_is_missing_and_not_what_agents_may_do() -> None:
    small = tuple(replace(each, memory_bytes=38_000_000) for each in unequal(24).devices)
    plan = best_plan(SMALL, replace(unequal(24), devices=small), BATCH)
    (grid,) = (each for each in plan.alternatives if each.family == "grid")
    assert grid.step_s is None
    assert "--memory" not in grid.reason


def test_a_host_without_room_for_all_activations_computes_them_again() -> None:
    fleet = unequal(24)
    roomy = best_plan(SMALL, fleet, BATCH)
    state = roomy.host.memory_bytes - roomy.host.activation_bytes
    tight = replace(
        fleet, server=replace(fleet.server, memory_bytes=state + roomy.host.activation_bytes * 0.8)
    )
    plan = best_plan(SMALL, tight, BATCH)
    assert plan.host.memory_bytes <= tight.server.memory_bytes


def test_no_device_of_the_type_is_an_error_that_names_it() -> None:
    only_f32 = DeviceProfile(device_id=1, flops_per_s={DType.F32: 1e9})
    with pytest.raises(PlanError, match="bfloat16"):
        best_plan(SMALL, Fleet((only_f32,)), BATCH)


def test_the_same_question_has_the_same_answer() -> None:
    one, other = (best_plan(SMALL, unequal(24), BATCH) for _ in range(2))
    assert one.best.step_s == other.best.step_s
    assert one.best.summary == other.best.summary
    assert one.gains == other.gains


def test_the_bound_of_a_grid_does_not_rise_with_faster_devices() -> None:
    model, batch = model_shape("llama-3.2-1b"), Batch(tokens=131_072, length=8192)

    def plan(flops_per_s: float) -> StepPlan:
        slow = [
            device(
                i,
                flops_per_s={DType.BF16: 5e12},
                memory_bytes=4 * 10**9,
                downlink_bytes_per_s=12.5e6,
                uplink_bytes_per_s=2.5e6,
            )
            for i in range(1, 7)
        ]
        fast = [
            device(
                i,
                flops_per_s={DType.BF16: flops_per_s},
                memory_bytes=8 * 10**9,
                downlink_bytes_per_s=125e6,
                uplink_bytes_per_s=125e6,
            )
            for i in range(7, 15)
        ]
        return best_plan(model, Fleet((*slow, *fast)), batch)

    before, after = plan(5e12), plan(20e12)
    assert before.best.family == after.best.family == "grid"
    assert after.best.bound_s <= before.best.bound_s
