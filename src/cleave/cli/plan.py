"""``cleave plan``: what a fleet would make of a model, before anybody installs anything."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console

from cleave import units
from cleave.core.fleet import Fleet, Server
from cleave.core.matrix import DType
from cleave.core.step.batch import Batch
from cleave.core.step.model import ModelShape
from cleave.errors import ConfigError

MODEL, FLEET = "llama-3.2-1b", "lab12"
TOKENS = 131_072
MIX = "phones,laptops"
SERVER_NIC_GBIT_PER_S, SERVER_MEMORY_GB, SERVER_MEMORY_CHANNELS = 10.0, 256.0, 8
"""The server of drawn devices, if nothing else is said: a rented machine, with TLS."""


class Wire(str, Enum):
    """Element types that may be asked for."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @property
    def dtype(self) -> DType:
        """As the core calls it."""
        return {"bf16": DType.BF16, "fp16": DType.F16, "fp32": DType.F32}[self.value]


def plan(
    *,
    model: Annotated[
        str, typer.Option(metavar="NAME|PATH", help="A published model, or a config.json.")
    ] = MODEL,
    tokens: Annotated[
        str | None, typer.Option(metavar="N", help="Of a step.", show_default="about 131072")
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Of a sequence.", show_default="the model's"),
    ] = None,
    wire: Annotated[
        Wire, typer.Option(case_sensitive=False, help="Element type that travels.")
    ] = Wire.BF16,
    lora: Annotated[
        int, typer.Option(min=0, metavar="RANK", help="Freeze the weights, train adapters.")
    ] = 0,
    fleet: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|PATH",
            help="lab12, school60, homes1000, phones8192, or a TOML file.",
            show_default=FLEET,
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Draw so many devices.", show_default=False),
    ] = None,
    mix: Annotated[
        str | None,
        typer.Option(metavar="KINDS", help="To draw from: phones:3,laptops:1.", show_default=MIX),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Of the draw.", show_default="0")
    ] = None,
    server_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Of the host: 256GB.", show_default="the fleet's"),
    ] = None,
    server_nic: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Of the server: 10Gbit/s.", show_default="the fleet's"),
    ] = None,
    total_tokens: Annotated[str, typer.Option(metavar="N", help="Of the whole run: 20B.")] = "1B",
    price_per_gb: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1000,
            metavar="USD",
            help="Of what the server sends.",
            show_default="0.05, in a LAN 0",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All figures, for programs.")] = False,
) -> None:
    """Say what a step would take on a fleet, what limits it, and what it costs.

    Nothing is installed, joined or sent: devices, links and prices come from
    tables, from a file, or are drawn. docs/planner.md says how to read the report.

        cleave plan --model llama-2-7b --lora 16 --fleet school60
        cleave plan --model llama-2-7b --devices 1024 --mix phones,laptops
    """
    from cleave.cli.plan_facts import Question, plan_facts
    from cleave.cli.plan_report import MAX_WIDTH, plan_report
    from cleave.cli.plan_warnings import warnings
    from cleave.core.step.choice import best_plan

    shape = _shape(model)
    name, there = _fleet(fleet, devices, mix, seed)
    server = _server(there.server, server_memory, server_nic)
    question = Question(
        model=shape,
        fleet=replace(there, server=server),
        fleet_name=name,
        batch=_batch(shape, tokens, length, wire, lora),
        total_tokens=units.parse_count(total_tokens),
        usd_per_gb=price_per_gb,
    )
    began_s = perf_counter()
    found = best_plan(question.model, question.fleet, question.batch)
    facts = plan_facts(found, question, perf_counter() - began_s)
    notes = warnings(facts)
    if as_json:
        typer.echo(json.dumps({**asdict(facts), "warnings": notes}, indent=2, allow_nan=False))
        return
    console = Console()
    width = min(console.width, MAX_WIDTH)
    console.print(plan_report(facts, notes, width), soft_wrap=True)


def _shape(model: str) -> ModelShape:
    from cleave.catalog import models

    if _is_file(model, ".json"):
        return models.from_config_json(Path(model))
    return models.model_shape(model)


def _batch(
    shape: ModelShape, tokens: str | None, length: int | None, wire: Wire, lora: int
) -> Batch:
    length = shape.default_length if length is None else length
    n_tokens = (
        max(1, round(TOKENS / length)) * length if tokens is None else units.parse_count(tokens)
    )
    return Batch(tokens=n_tokens, length=length, wire=wire.dtype, lora_rank=lora)


def _fleet(
    name: str | None, n_devices: int | None, mix: str | None, seed: int | None
) -> tuple[str, Fleet]:
    """What the fleet is called, and the fleet."""
    from cleave.catalog import fleets, servers

    if name is not None and n_devices is not None:
        raise ConfigError(
            f"--fleet {name} and --devices {n_devices} are two fleets: leave one of them out"
        )
    if n_devices is None:
        if mix is not None:
            raise ConfigError(f"--mix {mix} says what to draw, not how many: add --devices N")
        if seed is not None:
            raise ConfigError(f"--seed {seed} is that of a draw: add --devices N")
        return _named_fleet(FLEET if name is None else name)
    host = servers.server(
        nic_gbit_per_s=SERVER_NIC_GBIT_PER_S,
        memory_gb=SERVER_MEMORY_GB,
        n_memory_channels=SERVER_MEMORY_CHANNELS,
        has_tls=True,
    )
    mix = MIX if mix is None else mix
    drawn = fleets.draw(n_devices, mix, seed or 0, host=host)
    return f"{units.format_number(n_devices, 'device')} drawn from {mix}", drawn


def _named_fleet(name: str) -> tuple[str, Fleet]:
    from cleave.catalog import fleet_file, fleets

    if _is_file(name, ".toml"):
        return name, fleet_file.read_fleet(Path(name))
    return name, fleets.preset(name)


def _is_file(text: str, suffix: str) -> bool:
    """Whether it is meant as a path; the empty one is the working folder's."""
    return text.endswith(suffix) or (bool(text) and Path(text).exists())


def _server(server: Server, memory: str | None, nic: str | None) -> Server:
    if memory is not None:
        server = replace(server, memory_bytes=units.parse_bytes(memory))
    if nic is not None:
        server = replace(server, nic_bytes_per_s=units.parse_rate(nic))
    return server
