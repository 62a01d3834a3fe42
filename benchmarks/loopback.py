"""A full training step of GPT-2-small shapes: local on all cores, and on agents on the same cores.

``python benchmarks/loopback.py --json out.json`` measures both in one run and prints their ratio,
the bytes that moved beside those that the plan says must move, and processor seconds per GB.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import psutil
import torch

import cleave
from cleave.server.local import LocalFleet
from cleave.train.gpt import GPT, GPTConfig

SMALL = GPTConfig(vocabulary=50257, context=1024, width=768, n_layers=12, n_heads=12, dropout=0.0)
TINY = GPTConfig(vocabulary=512, context=128, width=128, n_layers=2, n_heads=4, dropout=0.0)


@dataclass(frozen=True)
class Measured:
    """One way of doing the step: median and all times, loss of the last step."""

    seconds: float
    times: list[float]
    loss: float


def make_step(
    config: GPTConfig, tokens: int, dtype: torch.dtype, offload_to: LocalFleet | None
) -> Callable[[], float]:
    """A function that does one optimiser step and returns the loss."""
    torch.manual_seed(0)
    model = GPT(config)
    if offload_to is not None:
        cleave.offload(model, offload_to, place="devices")
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    length = min(config.context, tokens)
    data = torch.randint(0, config.vocabulary, (tokens // length, length + 1))

    def step() -> float:
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            logits = model(data[:, :-1])
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1).float(), data[:, 1:].flatten()
            )
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.item()

    return step


def measure(step: Callable[[], float], repeats: int) -> Measured:
    """Median of ``repeats`` steps; the caller has warmed up."""
    times = []
    for _ in range(repeats):
        begin_s = time.perf_counter()
        loss = step()
        times.append(time.perf_counter() - begin_s)
    return Measured(statistics.median(times), times, loss)


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time of a process so far."""
    spent = process.cpu_times()
    return spent.user + spent.system


def compare(config: GPTConfig, args: argparse.Namespace, dtype: torch.dtype) -> dict[str, object]:
    """Local and offloaded, one after the other in the same run."""
    torch.set_num_threads(os.cpu_count() or 1)
    step = make_step(config, args.tokens, dtype, None)
    step()
    local = measure(step, args.repeats)
    with cleave.local_fleet(args.agents, threads=1, backend=args.backend) as fleet:
        step = make_step(config, args.tokens, dtype, fleet)
        step()
        here = psutil.Process()
        there = [psutil.Process(agent.process.pid) for agent in fleet.agents]
        before, spent = fleet.stats(), [cpu_seconds(p) for p in (here, *there)]
        offloaded = measure(step, args.repeats)
        after = fleet.stats()
        spent = [cpu_seconds(p) - old for p, old in zip((here, *there), spent, strict=True)]
    n_steps = args.repeats
    moved = after.bytes_down + after.bytes_up - before.bytes_down - before.bytes_up
    planned = after.planned_bytes - before.planned_bytes
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "local": asdict(local),
        "offloaded": asdict(offloaded),
        "ratio": offloaded.seconds / local.seconds,
        "bytes_per_step": moved / n_steps,
        "planned_bytes_per_step": planned / n_steps,
        "moved_over_planned": moved / max(1, planned),
        "device_flops_per_step": (after.device_flops - before.device_flops) / n_steps,
        "server_cpu_s_per_step": spent[0] / n_steps,
        "agents_cpu_s_per_step": sum(spent[1:]) / n_steps,
        "server_cpu_s_per_gb": spent[0] / (moved / 1e9),
        "agents_cpu_s_per_gb": sum(spent[1:]) / (moved / 1e9),
        "tasks_per_step": (after.device_tasks - before.device_tasks) / n_steps,
    }


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], action="append")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try this script")
    args = parser.parse_args()
    config = TINY if args.tiny else SMALL
    results = []
    for name in args.dtype or ["float32", "bfloat16"]:
        result = compare(config, args, getattr(torch, name))
        print(json.dumps(result, indent=2))
        results.append(result)
    report = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cleave": cleave.__version__,
        "model": asdict(config),
        "tokens": args.tokens,
        "results": results,
    }
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)


if __name__ == "__main__":
    main()
