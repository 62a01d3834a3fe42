"""The story of the demo: train on a fleet, disturb it, train alone, compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from cleave import units
from cleave.cli.churn import Strike
from cleave.cli.report import loss_table, share_line
from cleave.cli.screen import Screen
from cleave.server.local import AgentOptions, local_fleet
from cleave.train import checkpoint
from cleave.train.flops import host_flops
from cleave.train.gpt import GPT, GPTConfig, SelfAttention
from cleave.train.loop import StepRecord, Training, TrainingSettings
from cleave.train.offload import offload, restore
from cleave.train.text import VOCABULARY, ByteText, decode, encode, python_documentation

if TYPE_CHECKING:
    from cleave.server.local import LocalFleet

N_LAYERS, N_HEADS, WIDTH = 6, 6, 384
N_ROWS, CONTEXT = 8, 128
DROPOUT = 0.1
KINDS = (
    AgentOptions(name="desktop", backend="torch", limit_down="4Gbit/s", limit_up="4Gbit/s"),
    AgentOptions(name="laptop", backend="torch", limit_down="2Gbit/s", limit_up="1Gbit/s"),
    AgentOptions(name="office-pc", backend="numpy", limit_down="1Gbit/s", limit_up="1Gbit/s"),
    AgentOptions(name="old-pc", backend="numpy", limit_down="500Mbit/s", limit_up="250Mbit/s"),
)
NEWCOMER = replace(KINDS[1], name="newcomer")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What the demo was asked for.

    Attributes:
        n_steps: Optimizer steps.
        n_agents: Local agents.
        churn: Whether to kill one half-way and add another.
        alone: Whether to do the same run without agents at the end.
        seed: Of weights, batches and dropout.
        folder: For the checkpoint.
    """

    n_steps: int
    n_agents: int
    churn: bool
    alone: bool
    seed: int
    folder: Path

    @property
    def training(self) -> TrainingSettings:
        """Settings of both runs."""
        return TrainingSettings(
            n_steps=self.n_steps, n_rows=N_ROWS, context=CONTEXT, seed=self.seed
        )


def run_demo(settings: DemoSettings) -> None:
    """Train on a fleet, save, train alone, and show how the two compare."""
    console = Console(highlight=False)
    text = ByteText(python_documentation())
    training = _new_training(settings, text)
    n_parameters = sum(parameter.numel() for parameter in training.model.parameters())
    console.print(
        f"A GPT of {n_parameters / 1e6:.1f} M parameters learns English from {len(text):,} bytes "
        f"of Python's own documentation: {settings.n_steps} steps of "
        f"{settings.training.tokens_per_step:,} tokens.\n"
        f"Starting a server and {settings.n_agents} agents of unequal speed on this machine."
    )
    with local_fleet(agents=local_agents(settings.n_agents)) as fleet:
        offload(training.model, fleet, place="devices")
        try:
            records, on_host = _train_on(console, fleet, training, settings)
        finally:
            restore(training.model)
        stats = fleet.stats()
    console.print(share_line(stats, on_host))
    _save(console, training, records, settings)
    if settings.alone:
        alone = _train_alone(console, text, settings)
        console.print(loss_table(records, alone))
    console.print(f"\n[bold]What it writes[/] after {settings.n_steps} steps:")
    n_bytes = min(200, 10 * settings.n_steps)  # after a few steps it has little to say
    console.print(_sample(training, n_bytes), markup=False)


def local_agents(n: int) -> list[AgentOptions]:
    """Options of ``n`` agents: four kinds, each slower than the one before."""
    return [
        replace(KINDS[i % len(KINDS)], name=f"{KINDS[i % len(KINDS)].name}{i // len(KINDS) or ''}")
        for i in range(n)
    ]


def _new_training(settings: DemoSettings, text: ByteText) -> Training:
    torch.manual_seed(settings.seed)
    model = GPT(
        GPTConfig(
            vocabulary=VOCABULARY,
            context=CONTEXT,
            n_layers=N_LAYERS,
            n_heads=N_HEADS,
            width=WIDTH,
            dropout=DROPOUT,
        )
    )
    for module in model.modules():
        if isinstance(module, SelfAttention):
            module.dropout = 0.0  # devices draw other masks than torch: the losses would differ
    return Training(model, text, settings.training)


def _train_on(
    console: Console, fleet: LocalFleet, training: Training, settings: DemoSettings
) -> tuple[list[StepRecord], float]:
    """The records of all steps, and the GEMM operations that stayed on the host."""
    records: list[StepRecord] = []
    screen = Screen(
        console,
        "on the fleet",
        n_steps=settings.n_steps,
        tokens_per_step=settings.training.tokens_per_step,
        devices=lambda: fleet.devices,
    )
    steps = training.steps()
    strike_at = settings.n_steps // 2 if settings.churn else None
    strike: Strike | None = None
    with screen:
        on_host = host_flops(lambda: records.append(next(steps)))
        screen.show(records[0])
        for step in range(1, settings.n_steps):
            if step == strike_at:
                strike = _strike(fleet, records)
                screen.say(f"Killing {strike.victim} in mid-step; {NEWCOMER.name} joins.")
            records.append(next(steps))
            screen.show(records[-1])
    if strike is not None and strike_at is not None:
        console.print(str(strike.cost(strike_at, records)))
    return records, float(on_host) * settings.n_steps


def _strike(fleet: LocalFleet, records: Sequence[StepRecord]) -> Strike:
    return Strike(
        fleet,
        victim=fleet.agents[min(1, len(fleet.agents) - 1)],
        newcomer=NEWCOMER,
        delay_s=median(record.seconds for record in records) / 2,
    )


def _train_alone(console: Console, text: ByteText, settings: DemoSettings) -> list[StepRecord]:
    console.print("\nThe same run without a fleet: same seed, same batches, all on the host.")
    training = _new_training(settings, text)
    records: list[StepRecord] = []
    with Screen(
        console,
        "alone",
        n_steps=settings.n_steps,
        tokens_per_step=settings.training.tokens_per_step,
    ) as screen:
        for record in training.steps():
            records.append(record)
            screen.show(record)
    return records


def _save(
    console: Console, training: Training, records: Sequence[StepRecord], settings: DemoSettings
) -> None:
    facts = {
        "step": len(records),
        "losses": [record.loss for record in records],
        "seed": settings.seed,
        "model": {"layers": N_LAYERS, "heads": N_HEADS, "width": WIDTH, "context": CONTEXT},
    }
    folder = checkpoint.save(settings.folder, training.model, training.optimizer, facts)
    size = sum(path.stat().st_size for path in folder.iterdir())
    console.print(f"Checkpoint (weights and optimizer, {units.format_bytes(size)}): {folder}/")


def _sample(training: Training, n_bytes: int) -> str:
    torch.manual_seed(0)
    model = training.model
    assert isinstance(model, GPT)
    tokens = model.generate(encode("The "), n_bytes, temperature=0.6)
    return decode(tokens)
