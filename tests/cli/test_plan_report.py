"""A plan on one screen."""

from dataclasses import replace

import pytest
from tests.cli.plans import QUESTION, step_plan

from cleave.cli.plan_facts import PlanFacts, plan_facts
from cleave.cli.plan_report import plan_report
from cleave.cli.plan_today import Today
from cleave.cli.plan_warnings import warnings
from cleave.core.step.plan import Alternative


def shown(facts: PlanFacts, width: int = 80) -> str:
    return plan_report(facts, warnings(facts), width).plain


def words(facts: PlanFacts, width: int = 80) -> str:
    return " ".join(shown(facts, width).split())


FACTS = plan_facts(step_plan(), QUESTION, 0.5)
TEXT = shown(FACTS)
WORDS = " ".join(TEXT.split())


def test_it_fits_one_screen() -> None:
    lines = TEXT.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 45


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_it_is_no_wider_than_the_screen_and_no_line_ends_in_blanks(width: int) -> None:
    lines = shown(FACTS, width).splitlines()
    assert max(map(len, lines)) <= width
    assert [line for line in lines if line != line.rstrip()] == []


def test_on_a_narrow_screen_each_kind_is_a_sentence() -> None:
    assert "laptop: used 3/3, down 2.7 MB, up 667 kB, busy% d/u/c 40/33/30," in words(FACTS, 40)


def test_nothing_is_cut_off_in_80_columns_when_figures_are_long() -> None:
    kind = replace(
        FACTS.kinds[0],
        kind="workstation",
        n_used=8192,
        n_present=8192,
        down_bytes=123e9,
        up_bytes=123e9,
        memory_bytes=123e9,
        memory_lent_bytes=123e9,
        hours_per_day=14.4,
        down_busy_share=1.0,
        up_busy_share=1.0,
        compute_busy_share=1.0,
        night_bytes=123e9,
        month_bytes=123e9,
    )
    row = next(line for line in shown(replace(FACTS, kinds=(kind,))).splitlines() if "8192" in line)
    assert " ".join(row.split()) == (
        "workstation 8192/8192 123 GB 123 GB 100/100/100 100%/123 GB 14.4 123 GB 123 GB"
    )


def test_the_step_its_bound_and_the_family_come_first() -> None:
    assert "10.0 s, 6.4 tokens/s; 1.25 x the lower bound of 8.0 s" in WORDS
    assert "block: qkv, out: inner axis whole" in WORDS


def test_families_that_lose_say_why() -> None:
    assert "ksplit: 12.5 s, 1.25 times as long" in WORDS
    far_off = Alternative(
        family="mixed", step_s=340.0, reason="about 34 times as long", is_estimate=True
    )
    assert "mixed: 5 min 40 s, about 34 times as long" in words(
        replace(FACTS, alternatives=(far_off,))
    )
    assert "grid does not fit: no device can hold a layer" in WORDS


def test_the_limit_and_what_would_help_are_named() -> None:
    assert "limit laptop uplink, busy 60% of the step" in WORDS
    assert "10% more of it shortens the lower bound by: laptop uplink 6.0%" in WORDS


def test_where_more_of_a_step_is_waiting_than_anything_is_busy_that_is_the_limit() -> None:
    bound = replace(FACTS.bottleneck, busy_share=0.25, wait_share=0.5, host_share=0.1)
    assert (
        "limit waiting, 60% of the step: 50% for each other, 10% for the host; "
        "busiest is laptop uplink, 25%" in words(replace(FACTS, bottleneck=bound))
    )
    host = replace(bound, resource="host", kind="", busy_share=0.4, wait_share=0.2, host_share=0.4)
    assert "limit waiting, 60% of the step: 40% for the host, 20% for each other helps" in words(
        replace(FACTS, bottleneck=host)
    )
    busy = replace(bound, busy_share=0.45, wait_share=0.2, host_share=0.1)
    assert "limit laptop uplink, busy 45% of the step" in words(replace(FACTS, bottleneck=busy))


def test_a_forecast_is_called_so_and_what_runs_today_stands_below() -> None:
    assert "\ntoday" not in TEXT
    assert "forecast" not in WORDS
    today = Today(family="ksplit", step_s=3600, tokens_per_s=0.018, run_s=9e5, is_estimate=True)
    found = words(replace(FACTS, family="grid", today=today))
    assert "the lower bound of 8.0 s; a forecast today" in found
    assert (
        "today grid plans do not run yet; ksplit does: about 1 h a step, 0.018 tokens/s, 10 days "
        "for the run; the host alone is quicker: 40.0 s a step, 2 h 13 min for the run plan grid"
        in found
    )
    slow = words(replace(FACTS, family="grid", today=today, host_alone_s=4000.0))
    assert "the host alone is" not in slow
    none = words(replace(FACTS, family="grid", today=None))
    assert "today grid plans do not run yet, and none that does fits; the host alone takes" in none


def test_host_server_gpus_and_money_are_said() -> None:
    assert "8 kB of 1 GB memory: weights 1 kB, gradients 1 kB, optimiser 2 kB" in WORDS
    assert "sends 9 MB, receives 2.2 MB a step" in WORDS
    assert "13 k tokens are 200 steps: 33 min 20 s with all devices always there" in WORDS
    assert "1.8 GB sent, $0.05 per GB: $0.09" in WORDS


def test_names_in_brackets_are_shown_as_they_are() -> None:
    assert "[bold]x" in shown(replace(FACTS, fleet="[bold]x"))
