"""What is a bad idea about a plan, or less certain than its figures look."""

from __future__ import annotations

from collections.abc import Iterator

from cleave import units
from cleave.cli.plan_facts import HOUR_S, LAN_ROUND_TRIP_S, PlanFacts

WITHOUT_GPU_AGENT = ("phone", "tablet", "console")
NIGHT_BYTES = 40e9
"""Over a line to the Internet; 30 nights are 1.2 TB, where many cable contracts end."""
CONNECTIONS_MEASURED = 1000
SERVER_BUSY_SHARE = 0.8


def warnings(facts: PlanFacts) -> list[str]:
    """One sentence each, the weightiest first; empty if nothing speaks against the plan."""
    return [
        *_about_the_model(facts),
        *_about_renting(facts),
        *_about_devices(facts),
        *_about_the_server(facts),
    ]


def _about_the_model(facts: PlanFacts) -> Iterator[str]:
    if facts.max_length is not None and facts.length > facts.max_length:
        yield (
            f"Sequences of {facts.length:,} tokens are longer than the {facts.max_length:,} "
            f"that {facts.model} takes."
        )


def _about_renting(facts: PlanFacts) -> Iterator[str]:
    run = facts.run
    alone_s = None if facts.is_forecast else facts.host_alone_s  # a forecast tells it already
    if alone_s is not None and alone_s <= facts.step_s:
        yield (f"The host alone takes {units.format_seconds(alone_s)} a step: it needs no devices.")
    if facts.a100_step_s <= facts.step_s:
        gpus = "One rented A100" if facts.a100_count == 1 else f"{facts.a100_count} rented A100s"
        take = "takes" if facts.a100_count == 1 else "take"
        yield (
            f"{gpus} {take} {units.format_seconds(facts.a100_step_s)} a step, "
            f"{units.format_usd(run.gpu_usd)} for the run."
        )
    if run.gpu_usd <= run.traffic_usd:
        yield (
            f"Renting for the whole run costs {units.format_usd(run.gpu_usd)}, the server's "
            f"traffic {units.format_usd(run.traffic_usd)}."
        )


def _about_devices(facts: PlanFacts) -> Iterator[str]:
    used = [each for each in facts.kinds if each.n_used]
    for each in used:
        cap = each.month_cap_bytes
        if cap is not None and each.month_bytes > cap:
            yield (
                f"Each {each.kind} moves {units.format_bytes(each.month_bytes)} a month, "
                f"more than the {units.format_bytes(cap)} that an owner allows."
            )
    away = [each for each in used if facts.step_s > each.hours_per_day * HOUR_S]
    if away:
        nights = " and ".join(f"a {each.kind} {each.hours_per_day:.1f} h" for each in away)
        yield f"A step takes longer than devices are there: {nights} a day."
    far = [each for each in used if each.round_trip_s >= LAN_ROUND_TRIP_S]
    much = [each for each in far if each.night_bytes > NIGHT_BYTES]
    if much:
        nights = " and ".join(
            f"a {each.kind} {units.format_bytes(each.night_bytes)}" for each in much
        )
        yield (
            f"Over its line to the Internet {nights} a night: ask the owners, and mind contracts "
            "that end at 1.2 TB a month."
        )
    on_cpu = [each.kind for each in used if each.kind in WITHOUT_GPU_AGENT]
    if on_cpu:
        yield (
            f"Rates of {' and '.join(f'a {kind}' for kind in on_cpu)} are those of its GPU; "
            "today's agent computes on its processor and is slower."
        )
    if facts.left_out:
        counts = " and ".join(
            units.format_number(left.n_devices, left.kind) for left in facts.left_out
        )
        yield f"Left out: {counts}; the first: {facts.left_out[0].reason}."


def _about_the_server(facts: PlanFacts) -> Iterator[str]:
    if facts.server_busy_share > SERVER_BUSY_SHARE:
        yield (
            f"The server's limit, its {facts.server_limit.removeprefix('server ')}, is busy "
            f"{facts.server_busy_share:.0%} of the step: more than about "
            f"{units.format_number(facts.devices_at_server_limit or 0, 'device')} like these "
            "wait for it."
        )
    if facts.devices_used > CONNECTIONS_MEASURED:
        yield (
            f"{facts.devices_used:,} devices are more than the {CONNECTIONS_MEASURED:,} "
            "connections with which one server process has been measured."
        )
