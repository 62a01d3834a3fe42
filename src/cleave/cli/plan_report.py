"""A plan on one screen, for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from cleave import units
from cleave.cli.plan_facts import KindFacts, PlanFacts
from cleave.core.step.plan import Alternative, Bottleneck

MAX_WIDTH = 100
_INDENT = 8  # letters of a label and what is between it and the text
_NAME = 7  # letters of a kind of device that are always shown
_LONGEST = 150  # letters of a reason or a summary; the JSON has all of it
_N_GAINS = 3
_BUSY = 0.5  # of a step: what is busy for so long limits it, however much else waits
_HEADINGS = (
    "devices", "used", "down", "up", "busy% d/u/c", "memory", "h/day", "/night", "/month",
)  # fmt: skip


def plan_report(facts: PlanFacts, warnings: Sequence[str], width: int) -> Text:
    """The whole report in lines of at most this width."""
    title = [Text(line, style="bold") for line in _wrapped(_title(facts), width)]
    notes = (("" if i else "notes", text) for i, text in enumerate(warnings))
    parts = (
        title,
        _labelled(_step(facts), width),
        _devices(facts.kinds, width),
        _labelled(_around(facts), width),
        _labelled(notes, width),
    )
    return Text("\n\n").join(Text("\n").join(lines) for lines in parts if lines)


def _title(facts: PlanFacts) -> str:
    more = facts.max_length is not None and facts.max_length > facts.length
    longer = f" (the model takes {facts.max_length:,})" if more else ""
    trained = f"LoRA {facts.lora_rank}" if facts.lora_rank else "all weights"
    return (
        f"{facts.model}, {units.format_count(facts.parameters)} parameters, {trained}, on "
        f"{facts.fleet}\n"
        f"{facts.tokens:,} tokens a step: "
        f"{units.format_number(facts.tokens // facts.length, 'sequence')} of "
        f"{facts.length:,}{longer}, {facts.wire}"
    )


def _step(facts: PlanFacts) -> Iterator[tuple[str, str]]:
    yield (
        "step",
        f"{units.format_seconds(facts.step_s)}, {_tokens_per_s(facts.tokens_per_s)}; "
        f"{units.format_factor(facts.ratio)} x the lower bound of "
        f"{units.format_seconds(facts.lower_bound_s)}{'; a forecast' if facts.is_forecast else ''}",
    )
    if facts.is_forecast:
        yield "today", _today(facts)
    yield "plan", _shortened(f"{facts.family}: {facts.summary}")
    for each in facts.alternatives:
        yield "", _shortened(_loses(each))
    yield "limit", _limit(facts.bottleneck)
    gains = ", ".join(
        f"{_resource(gain.resource, gain.kind)} {-10 * gain.step_s_gain:.1f}%"
        for gain in facts.gains[:_N_GAINS]
    )
    if gains:
        yield "helps", f"10% more of it shortens the lower bound by: {gains}"


def _today(facts: PlanFacts) -> str:
    today, alone_s, n_steps = facts.today, facts.host_alone_s, facts.run.n_steps
    text = f"{facts.family} plans do not run yet"
    host = "; the host alone takes"
    if today is None:
        text += ", and none that does fits"
    else:
        about = "about " if today.is_estimate else ""
        text += (
            f"; {today.family} does: {about}{units.format_seconds(today.step_s)} a step, "
            f"{_tokens_per_s(today.tokens_per_s)}, {units.format_seconds(today.run_s)} for the run"
        )
        host = "; the host alone is quicker:"
    if alone_s is not None and (today is None or alone_s <= today.step_s):
        text += (
            f"{host} {units.format_seconds(alone_s)} a step, "
            f"{units.format_seconds(n_steps * alone_s)} for the run"
        )
    return text


def _limit(bound: Bottleneck) -> str:
    busiest = _resource(bound.resource, bound.kind)
    if bound.busy_share >= min(_BUSY, bound.wait_share + bound.host_share):
        return f"{busiest}, busy {bound.busy_share:.0%} of the step"
    waits = ((bound.wait_share, "each other"), (bound.host_share, "the host"))
    told = ", ".join(
        f"{share:.0%} for {whom}" for share, whom in sorted(waits, reverse=True) if share >= 0.005
    )
    text = f"waiting, {sum(share for share, _ in waits):.0%} of the step: {told}"
    if bound.resource == "host":
        return text
    return f"{text}; busiest is {busiest}, {bound.busy_share:.0%}"


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
        + (
            f"; its {facts.server_limit} is full with about {units.format_number(full, 'device')}"
            if full
            else ""
        ),
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


def _devices(kinds: Sequence[KindFacts], width: int) -> list[Text]:
    """A row per kind of device, figures of one device; a sentence each where that is too wide."""
    rows = [_HEADINGS, *(_row(each) for each in kinds)]
    columns = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(_HEADINGS))]
    columns[0] = min(columns[0], width - sum(columns[1:]) - len(columns[1:]))
    if columns[0] < _NAME:
        return _labelled(_sentences(rows[1:]), width)
    lines = []
    for name, *figures in rows:
        shown = name if len(name) <= columns[0] else f"{name[: columns[0] - 1]}…"
        right = (text.rjust(size) for text, size in zip(figures, columns[1:], strict=False))
        lines.append(Text(" ".join((shown.ljust(columns[0]), *right))))
    lines[0].stylize("bold")
    return lines


def _sentences(rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    for i, (name, *figures) in enumerate(rows):
        told = ", ".join(map(" ".join, zip(_HEADINGS[1:], figures, strict=False)))
        yield ("" if i else _HEADINGS[0], f"{name}: {told}")


def _row(kind: KindFacts) -> tuple[str, ...]:
    used = f"{kind.n_used}/{kind.n_present}"
    if not kind.n_used:
        return kind.kind, used
    busy = (kind.down_busy_share, kind.up_busy_share, kind.compute_busy_share)
    return (
        kind.kind,
        used,
        units.format_bytes(kind.down_bytes),
        units.format_bytes(kind.up_bytes),
        "/".join(f"{100 * share:.0f}" for share in busy),
        f"{kind.memory_bytes / kind.memory_lent_bytes:.0%}/"
        f"{units.format_bytes(kind.memory_lent_bytes)}",
        f"{kind.hours_per_day:.1f}",
        units.format_bytes(kind.night_bytes),
        units.format_bytes(kind.month_bytes),
    )


def _labelled(rows: Iterable[tuple[str, str]], width: int) -> list[Text]:
    lines = []
    for label, text in rows:
        for i, line in enumerate(_wrapped(text, width - _INDENT)):
            lines.append(Text.assemble(("" if i else label).ljust(_INDENT), line))
            if not i:
                lines[-1].stylize("bold", 0, len(label))
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return [
        line
        for each in text.splitlines()
        for line in textwrap.wrap(each, max(width, _INDENT), break_on_hyphens=False)
    ]


def _loses(alternative: Alternative) -> str:
    if alternative.step_s is None:
        return f"{alternative.family} does not fit: {alternative.reason}"
    seconds = units.format_seconds(alternative.step_s)
    return f"{alternative.family}: {seconds}, {alternative.reason}"


def _tokens_per_s(rate: float) -> str:
    return f"{rate:,.0f} tokens/s" if rate >= 9.95 else f"{rate:.2g} tokens/s"


def _resource(resource: str, kind: str) -> str:
    return f"{kind} {resource}" if kind else resource


def _shortened(text: str) -> str:
    return textwrap.shorten(text, _LONGEST, placeholder=" ...")
