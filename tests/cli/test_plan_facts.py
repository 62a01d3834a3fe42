"""What a plan means, worked out by hand for five devices."""

from dataclasses import replace

import pytest
from tests.cli.plans import FLEET, MODEL, QUESTION, device, step_plan

from cleave.catalog.gpus import gpu
from cleave.cli.plan_facts import LeftOut, PlanFacts, Question, plan_facts
from cleave.cli.plan_today import Today
from cleave.cli.plan_warnings import warnings
from cleave.core.device import Caps
from cleave.core.fleet import Fleet
from cleave.core.step.plan import StepPlan


def facts(plan: StepPlan | None = None, question: Question = QUESTION) -> PlanFacts:
    return plan_facts(plan or step_plan(), question, 0.5)


def test_a_device_s_bytes_times_devices_are_the_server_s() -> None:
    found = facts()
    assert (found.devices_present, found.devices_used) == (5, 4)
    assert found.server_egress_bytes == 4e6 + 2e6 + 2e6 + 1e6
    assert found.down_bytes_per_device == 9e6 / 4
    assert found.up_bytes_per_device == 2.25e6 / 4
    assert (found.ratio, found.tokens_per_s) == (10 / 8, 64 / 10)


def test_kinds_have_means_over_their_used_devices() -> None:
    laptop, phone = facts().kinds
    assert (laptop.kind, laptop.n_used, laptop.n_present) == ("laptop", 3, 3)
    assert (phone.kind, phone.n_used, phone.n_present) == ("phone", 1, 2)
    assert (laptop.down_bytes, phone.down_bytes) == (8e6 / 3, 1e6)
    assert (laptop.memory_bytes, laptop.memory_lent_bytes) == (2e6, 4e6)
    assert (laptop.work_share, phone.work_share) == (0.9, 0.1)
    assert laptop.compute_busy_share == pytest.approx(3 / 10)


def test_a_line_that_is_shared_is_busy_with_the_bytes_of_all_behind_it() -> None:
    laptop = facts().kinds[0]
    # Down: 4 s on its own line, and twice 4 MB in all over a line of 1 MB/s; up: 2 s, and twice
    # 1 MB in all over one of 0.25 MB/s.
    assert laptop.down_busy_share == pytest.approx((4 + 4 + 4) / 3 / 10)
    assert laptop.up_busy_share == pytest.approx((2 + 4 + 4) / 3 / 10)


def test_a_night_is_the_hours_that_its_owner_lends() -> None:
    laptop, phone = facts().kinds
    # 5 MB, 2.5 MB and 2.5 MB in 10 s; 6 h are 2,160 steps. The phone: 1.25 MB, 2 h are 720.
    assert laptop.night_bytes == pytest.approx(10e6 / 3 * 2160)
    assert phone.night_bytes == pytest.approx(1.25e6 * 720)
    assert phone.month_bytes == pytest.approx(30 * phone.night_bytes)


def test_what_stays_on_devices_is_sent_again_every_night() -> None:
    plan = step_plan()
    kept = replace(plan, best=replace(plan.best, resident_bytes=4e6))
    more = facts(kept).kinds[1].night_bytes - facts().kinds[1].night_bytes
    assert more == pytest.approx(4e6 / 4)
    assert facts(kept).run.egress_bytes - facts().run.egress_bytes == 4e6


def test_devices_without_work_are_counted_with_a_reason() -> None:
    reason = "would not shorten the 8 s that the others take"
    assert facts().left_out == (LeftOut("phone", 1, reason),)


def test_what_is_lent_is_that_of_the_devices_used() -> None:
    roomy = replace(FLEET.devices[3], memory_bytes=8_000_000)
    fleet = Fleet((*FLEET.devices[:3], roomy, FLEET.devices[4]), FLEET.sites, FLEET.server)
    phone = facts(question=replace(QUESTION, fleet=fleet)).kinds[1]
    assert (phone.n_used, phone.memory_lent_bytes) == (1, 8e6)  # the other lends 4 MB


def test_a_kind_without_work_is_there_with_nothing() -> None:
    fleet = Fleet((*FLEET.devices[:4], device(5, "tablet")), FLEET.sites, FLEET.server)
    tablet = facts(question=replace(QUESTION, fleet=fleet)).kinds[-1]
    assert (tablet.kind, tablet.n_used, tablet.down_bytes, tablet.night_bytes) == (
        "tablet", 0, 0, 0,
    )  # fmt: skip


def test_the_server_is_full_when_its_busier_way_is() -> None:
    found = facts()
    # 9 MB down in 10 s of what its process moves, 0.8 MB/s: more than fits, so not even 4.
    assert found.server_limit == "server process"
    assert found.server_busy_share == pytest.approx(0.9e6 / 0.8e6)
    assert found.devices_at_server_limit == round(4 / 1.125)


def test_a_run_is_its_steps_and_lasts_longer_when_devices_have_hours() -> None:
    run = facts().run
    assert (run.n_steps, run.run_s) == (200, 2000)
    # 90 % of the work is done by devices that are there for 6 h a day, 10 % by one for 2 h.
    assert run.calendar_s == pytest.approx(2000 * 24 / (0.9 * 6 + 0.1 * 2))
    assert run.n_enrolled == 3 * 4 + 1 * 12
    assert run.traffic_usd == pytest.approx(0.05 * 1.8)  # 9 MB in each of 200 steps


def test_traffic_inside_a_lan_is_free_unless_a_price_is_given() -> None:
    lan = Fleet(
        tuple(replace(each, latency_s=0.001) for each in FLEET.devices), FLEET.sites, FLEET.server
    )
    question = replace(QUESTION, fleet=lan)
    assert facts(question=question).run.traffic_usd == 0
    assert facts(question=replace(question, usd_per_gb=1.0)).run.traffic_usd == pytest.approx(1.8)


def test_rented_gpus_do_the_same_operations_at_their_usual_rate() -> None:
    found = facts()
    a100 = gpu("A100 80GB")
    one_s = MODEL.step_flops(64, 16) / a100.sustained_flops_per_s
    assert found.a100_equivalents == pytest.approx(one_s / 10)
    assert found.a100_count == 1
    assert found.a100_step_s == pytest.approx(one_s)
    assert found.run.gpu_usd == pytest.approx(200 * one_s / 3600 * a100.usd_per_hour)


def test_a_model_that_one_gpu_cannot_hold_needs_several() -> None:
    plan = step_plan()
    large = replace(plan, host=replace(plan.host, optimizer_bytes=200e9))
    assert facts(large).a100_count == 3  # of 80 GB


def test_what_is_not_known_is_none() -> None:
    fleet = Fleet(FLEET.devices, FLEET.sites)
    found = facts(step_plan(host_alone_s=None), replace(QUESTION, fleet=fleet))
    assert found.host_memory_lent_bytes is None
    assert found.host_alone_s is None
    assert (found.server_limit, found.devices_at_server_limit) == ("", None)


def test_a_plan_that_nothing_speaks_against_has_no_warnings() -> None:
    found = facts()
    quiet = replace(
        found,
        a100_step_s=20.0,
        server_busy_share=0.5,
        left_out=(),
        kinds=found.kinds[:1],
        run=replace(found.run, gpu_usd=1.0),
    )
    assert warnings(quiet) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"host_alone_s": 9.0}, "The host alone takes 9.0 s a step"),
        ({"a100_step_s": 5.0}, "One rented A100 takes 5.0 s a step, $0.00 for the run"),
        ({"a100_step_s": 5.0, "a100_count": 3}, "3 rented A100s take 5.0 s a step"),
        (
            {"length": 32, "max_length": 16},
            "Sequences of 32 tokens are longer than the 16 that tiny",
        ),
        ({"left_out": (LeftOut("phone", 2, "slow"),)}, "Left out: 2 phones; the first: slow."),
        (
            {"step_s": 4 * 3600.0},
            "A step takes longer than devices are there: a phone 2.0 h a day.",
        ),
        ({"devices_used": 1001}, "1,001 devices are more than the 1,000 connections"),
        ({"server_busy_share": 0.9}, "process, is busy 90% of the step: more than about 4"),
    ],
)
def test_a_bad_idea_is_said(changes: dict[str, object], text: str) -> None:
    assert text in " ".join(warnings(replace(facts(), **changes)))  # type: ignore[arg-type]


def test_what_runs_today_is_the_plan_itself_or_the_quickest_that_does() -> None:
    found = facts()
    assert found.today == Today(
        family="block", step_s=10, tokens_per_s=6.4, run_s=2000, is_estimate=False
    )
    assert not found.is_forecast
    plan = step_plan()
    grid = replace(plan, best=replace(plan.best, family="grid"))
    forecast = facts(grid)
    assert forecast.is_forecast
    assert forecast.today == Today(
        family="ksplit", step_s=12.5, tokens_per_s=64 / 12.5, run_s=2500, is_estimate=False
    )
    nothing = facts(replace(grid, alternatives=()))
    assert nothing.today is None
    assert nothing.is_forecast


def test_of_a_forecast_the_host_alone_is_told_beside_what_runs_today() -> None:
    forecast = replace(facts(), today=None, host_alone_s=9.0)
    assert "The host alone" not in " ".join(warnings(forecast))


def test_traffic_that_costs_more_than_renting_is_said() -> None:
    run = replace(facts().run, gpu_usd=12.0, traffic_usd=31_000.0)
    text = "Renting for the whole run costs $12, the server's traffic $31,000."
    assert text in warnings(replace(facts(), run=run))


def test_an_owner_s_monthly_cap_is_minded() -> None:
    assert facts().kinds[1].month_cap_bytes == 1e9
    assert "Each phone moves 27 GB a month, more than the 1 GB that an owner allows." in warnings(
        facts()
    )


def test_much_traffic_over_a_home_line_is_said_and_inside_a_lan_it_is_not() -> None:
    found = facts()
    laptop = replace(found.kinds[0], night_bytes=41e9)
    text = "Over its line to the Internet a laptop 41 GB a night"
    assert text in " ".join(warnings(replace(found, kinds=(laptop,))))
    near = replace(laptop, round_trip_s=0.001)
    assert text not in " ".join(warnings(replace(found, kinds=(near,))))


def test_caps_of_no_limit_are_none() -> None:
    assert Caps().bytes_per_month == float("inf")
    assert facts().kinds[0].month_cap_bytes is None
