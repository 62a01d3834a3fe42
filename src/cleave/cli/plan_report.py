"""A plan on one screen, for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cleave import units
from cleave.cli.plan_facts import KindFacts, PlanFacts
from cleave.core.step.plan import Alternative

WIDTH = 80
_LONGEST = 150  # letters of a reason or a summary; the JSON has all of it
_N_GAINS = 3


def plan_report(facts: PlanFacts, warnings: Sequence[str]) -> RenderableType:
    """The whole report, readable in 80 columns."""
    return Group(
        Text(_title(facts), style="bold"),
        Text(""),
        _lines(_step(facts)),
        Text(""),
        _kind_table(facts.kinds),
        Text(""),
        _lines(_around(facts)),
        *([Text(""), _lines(_notes(warnings))] if warnings else ()),
    )


def _title(facts: PlanFacts) -> str:
    trained = f"LoRA {facts.lora_rank}" if facts.lora_rank else "all weights"
    return (
        f"{facts.model}, {units.format_count(facts.parameters)} parameters, {trained}, on "
        f"{facts.fleet}\n"
        f"{facts.tokens:,} tokens a step: {facts.tokens // facts.length} sequences of "
        f"{facts.length:,}, {facts.wire}"
    )


def _step(facts: PlanFacts) -> Iterator[tuple[str, str]]:
    yield (
        "step",
        f"{units.format_seconds(facts.step_s)}, {facts.tokens_per_s:,.0f} tokens/s; "
        f"{facts.ratio:.2f} x the lower bound of {units.format_seconds(facts.lower_bound_s)}",
    )
    yield "plan", _shortened(f"{facts.family}: {facts.summary}")
    for each in facts.alternatives:
        yield "", _shortened(_loses(each))
    bound = facts.bottleneck
    yield (
        "limit",
        f"{_resource(bound.resource, bound.kind)}, busy {bound.busy_share:.0%} of the step",
    )
    gains = ", ".join(
        f"{_resource(gain.resource, gain.kind)} {-10 * gain.step_s_gain:.1f} %"
        for gain in facts.gains[:_N_GAINS]
    )
    if gains:
        yield "helps", f"10 % more of it shortens the step by: {gains}"


def _around(facts: PlanFacts) -> Iterator[tuple[str, str]]:
    host, run = facts.host, facts.run
    lent = facts.host_memory_lent_bytes
    yield (
        "host",
        f"{units.format_bytes(facts.host_memory_bytes)}"
        f"{f' of {units.format_bytes(lent)}' if lent else ''} memory: weights "
        f"{units.format_bytes(host.weights_bytes)}, gradients "
        f"{units.format_bytes(host.gradients_bytes)}, optimiser "
        f"{units.format_bytes(host.optimizer_bytes)}, "
        f"{'layer inputs' if host.is_recomputing else 'activations'} "
        f"{units.format_bytes(host.activation_bytes)}; devices wait "
        f"{units.format_seconds(facts.host_s)} of a step for it"
        + (
            f"; alone it takes {units.format_seconds(facts.host_alone_s)}"
            if facts.host_alone_s is not None
            else ""
        ),
    )
    full = facts.devices_at_server_limit
    yield (
        "server",
        f"sends {units.format_bytes(facts.server_egress_bytes)}, receives "
        f"{units.format_bytes(facts.server_ingress_bytes)} a step"
        + (f", {units.format_bytes(facts.resident_bytes)} once" if facts.resident_bytes else "")
        + (f"; its {facts.server_limit} is full with about {full:,} devices" if full else ""),
    )
    yield (
        "A100",
        f"this fleet is {facts.a100_equivalents:.2g} A100s at their usual "
        f"{units.format_flops_per_s(facts.a100_flops_per_s)}; "
        f"{facts.a100_count} would hold the model and take "
        f"{units.format_seconds(facts.a100_step_s)} a step",
    )
    yield (
        "run",
        f"{units.format_count(run.total_tokens)} tokens are {run.n_steps:,} steps: "
        f"{units.format_seconds(run.run_s)} with all devices always there "
        f"({run.n_enrolled:,} enrolled), {units.format_seconds(run.calendar_s)} if they come "
        "for their hours alone",
    )
    yield (
        "cost",
        f"{units.format_bytes(run.egress_bytes)} sent, {units.format_usd(run.usd_per_gb)} per GB: "
        f"{units.format_usd(run.traffic_usd)}; renting instead: {run.gpu_hours:,.0f} A100 hours, "
        f"{units.format_usd(run.gpu_usd)}",
    )


def _notes(warnings: Sequence[str]) -> Iterator[tuple[str, str]]:
    for i, text in enumerate(warnings):
        yield ("" if i else "notes", text)


def _kind_table(kinds: Sequence[KindFacts]) -> Table:
    """A row per kind of device; figures of one device."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("devices", no_wrap=True, max_width=9)
    for heading in (
        "used", "down", "up", "busy% d/u/c", "memory", "h/day", "/night", "/month"
    ):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)
    for each in kinds:
        busy = (each.down_busy_share, each.up_busy_share, each.compute_busy_share)
        figures = (
            units.format_bytes(each.down_bytes),
            units.format_bytes(each.up_bytes),
            "/".join(f"{100 * share:.0f}" for share in busy),
            f"{each.memory_bytes / each.memory_lent_bytes:.0%}/"
            f"{units.format_bytes(each.memory_lent_bytes)}",
            f"{each.hours_per_day:.1f}",
            units.format_bytes(each.night_bytes),
            units.format_bytes(each.month_bytes),
        )
        used = f"{each.n_used}/{each.n_present}"
        table.add_row(Text(each.kind), used, *(figures if each.n_used else ()))
    return table


def _lines(rows: Iterator[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True, min_width=6)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(label, Text(text))
    return table


def _loses(alternative: Alternative) -> str:
    if alternative.step_s is None:
        return f"{alternative.family} does not fit: {alternative.reason}"
    seconds = units.format_seconds(alternative.step_s)
    return f"{alternative.family}: {seconds}, {alternative.reason}"


def _resource(resource: str, kind: str) -> str:
    return f"{kind} {resource}" if kind else resource


def _shortened(text: str) -> str:
    return textwrap.shorten(text, _LONGEST, placeholder=" ...")
