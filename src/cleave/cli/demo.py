"""``cleave demo``: a small GPT trained on a server and local agents, beside the same run alone."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from cleave.errors import ConfigError


def demo(
    *,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Optimizer steps.")] = 30,
    agents: Annotated[
        int, typer.Option(min=1, max=16, metavar="N", help="Local agents to start.")
    ] = 4,
    churn: Annotated[
        bool, typer.Option(help="Kill an agent half-way and let another join.")
    ] = True,
    alone: Annotated[
        bool, typer.Option(help="Do the same run without agents, to compare the loss.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Of weights, batches and dropout.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint.")] = Path("runs/demo"),
) -> None:
    """Train a small GPT on this machine: a server and four unequal agents.

    It learns English from the documentation that ships with Python. Half-way
    one agent is killed and a new one joins; at the end the same run is done
    without agents and its loss shown beside.
    """
    for module in ("torch", "safetensors"):
        if find_spec(module) is None:
            raise ConfigError(
                f"the demo trains and needs {module}: pip install 'cleave-train[host]'"
            )
    from cleave.cli.demo_run import DemoSettings, run_demo

    run_demo(
        DemoSettings(
            n_steps=steps,
            n_agents=agents,
            churn=churn and steps > 1,
            alone=alone,
            seed=seed,
            folder=out,
        )
    )
