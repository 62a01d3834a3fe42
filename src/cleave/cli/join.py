"""``cleave join``: this machine lends its processor."""

from __future__ import annotations

import platform
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from cleave import units


class BackendName(str, Enum):
    """What computes."""

    AUTO = "auto"
    TORCH = "torch"
    NUMPY = "numpy"


class ProcessorName(str, Enum):
    """Where torch computes."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


def join(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="The address that the server printed.", show_default=False
        ),
    ],
    *,
    name: Annotated[
        str | None,
        typer.Option(help="What the server calls it.", show_default="this machine's name"),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="The most that tasks may occupy, like 2GB.",
            show_default="a quarter, at most half of what is free",
            rich_help_panel="What it lends",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Processor threads.",
            show_default="all",
            rich_help_panel="What it lends",
        ),
    ] = None,
    limit_down: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="The most it receives, like 20Mbit/s.",
            show_default="no limit",
            rich_help_panel="What it lends",
        ),
    ] = None,
    limit_up: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="The most it sends, like 5Mbit/s.",
            show_default="no limit",
            rich_help_panel="What it lends",
        ),
    ] = None,
    backend: Annotated[
        BackendName,
        typer.Option(
            help="What computes; auto takes torch if it is installed.",
            rich_help_panel="What it lends",
        ),
    ] = BackendName.AUTO,
    device: Annotated[
        ProcessorName,
        typer.Option(
            help="Which processor, with torch; auto takes a GPU if there is one.",
            rich_help_panel="What it lends",
        ),
    ] = ProcessorName.AUTO,
    on_battery: Annotated[
        bool,
        typer.Option("--on-battery", help="Go on without a charger.", rich_help_panel="Courtesy"),
    ] = False,
    pause_file: Annotated[
        Path | None,
        typer.Option(
            help="Pause while this file exists.",
            show_default="none",
            rich_help_panel="Courtesy",
        ),
    ] = None,
    token: Annotated[
        str, typer.Option(help="If the address has none.", rich_help_panel="Connection")
    ] = "",
    ca_file: Annotated[
        Path | None,
        typer.Option(
            "--ca",
            metavar="FILE",
            help="Certificates to trust besides the system's.",
            show_default="none",
            rich_help_panel="Connection",
        ),
    ] = None,
    once: Annotated[
        bool,
        typer.Option("--once", help="End when the connection does.", rich_help_panel="Connection"),
    ] = False,
    parent_pid: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Lend this machine's processor to the server at URL.

    It dials out, opens no port, and dials again after a lost connection. It runs
    at the lowest priority and pauses on battery. Ctrl-C leaves.
    """
    from cleave.agent.app import run_agent
    from cleave.agent.config import AgentConfig, default_memory_bytes
    from cleave.wire.join import JoinAddress

    code = run_agent(
        AgentConfig(
            address=JoinAddress.parse(url, token),
            name=name or platform.node(),
            memory_bytes=units.parse_bytes(memory) if memory else default_memory_bytes(),
            backend=backend.value,
            device=device.value,
            threads=threads,
            limit_down_bytes_per_s=None if limit_down is None else units.parse_rate(limit_down),
            limit_up_bytes_per_s=None if limit_up is None else units.parse_rate(limit_up),
            may_use_battery=on_battery,
            pause_file=pause_file,
            ca_file=ca_file,
            retry=not once,
            parent_pid=parent_pid,
        )
    )
    raise typer.Exit(code)
