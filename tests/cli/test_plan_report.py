"""A plan on one screen."""

from dataclasses import replace

from rich.console import Console
from tests.cli.plans import QUESTION, step_plan

from cleave.cli.plan_facts import PlanFacts, plan_facts
from cleave.cli.plan_report import plan_report
from cleave.cli.plan_warnings import warnings


def shown(facts: PlanFacts, width: int = 80) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(plan_report(facts, warnings(facts)))
    return capture.get()


FACTS = plan_facts(step_plan(), QUESTION, 0.5)
TEXT = shown(FACTS)
WORDS = " ".join(TEXT.split())


def test_it_fits_one_screen() -> None:
    lines = TEXT.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 45


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
        "workstat… 8192/8192 123 GB 123 GB 100/100/100 100%/123 GB 14.4 123 GB 123 GB"
    )


def test_the_step_its_bound_and_the_family_come_first() -> None:
    assert "10.0 s, 6 tokens/s; 1.25 x the lower bound of 8.0 s" in WORDS
    assert "block: qkv, out: inner axis whole" in WORDS


def test_families_that_lose_say_why() -> None:
    assert "ksplit: 12.5 s, 1.25 times as long" in WORDS
    assert "grid does not fit: no device can hold a layer" in WORDS


def test_the_limit_and_what_would_help_are_named() -> None:
    assert "laptop uplink, busy 40% of the step" in WORDS
    assert "10 % more of it shortens the step by: laptop uplink 6.0 %" in WORDS


def test_host_server_gpus_and_money_are_said() -> None:
    assert "8 kB of 1 GB memory: weights 1 kB, gradients 1 kB, optimiser 2 kB" in WORDS
    assert "sends 9 MB, receives 2.2 MB a step" in WORDS
    assert "13 k tokens are 200 steps: 33:20 with all devices always there" in WORDS
    assert "1.8 GB sent, $0.05 per GB: $0.09" in WORDS


def test_names_in_brackets_are_shown_as_they_are() -> None:
    assert "[bold]x" in shown(replace(FACTS, fleet="[bold]x"))
