"""How near plans come to the lower bound, and how long planning takes, on fleets of all sizes.

``python benchmarks/planner.py --json out.json`` cuts every GEMM shape of a training step (forward,
dX and dW of each linear layer, quantum 1, bf16) for equal devices, devices spread log-normally and
devices drawn from the catalog, each with its own link, in homes, and in offices behind one line.
It prints makespan / bound and the time that planning took; whole steps by family; and how the bytes
of a device fall as devices join, beside tensor and data parallelism.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

import cleave
from cleave.catalog import fleets
from cleave.catalog.models import model_shape
from cleave.core.fleet import Fleet, Server, Site
from cleave.core.matrix import DType
from cleave.core.planning.cost import CostForm, FleetArrays
from cleave.core.planning.partition import cut, partition
from cleave.core.step.batch import Batch
from cleave.core.step.choice import best_plan

DTYPE = DType.BF16
MODELS = ("opt-1.3b", "llama-2-7b", "opt-13b", "llama-2-70b")
TOKENS = (16_384, 131_072)
SEEDS = {16: 4, 128: 2, 1024: 1, 8192: 1}  # small fleets differ more from draw to draw
OFFICE = 60
OFFICE_LINE = Site(site_id=1, downlink_bytes_per_s=25e6, uplink_bytes_per_s=2.5e6)  # 200/20 Mbit/s
STEP_MODEL, LENGTH = "llama-2-7b", 2048
STEP_FLEETS = ("equal", "log-normal", "tables")
SMALLEST_SCALING, LARGEST_SCALING = 64, 8192


@dataclass(frozen=True)
class Shape:
    """A GEMM ``(m, k) @ (k, n)`` of a training step."""

    name: str
    m: int
    n: int
    k: int

    @property
    def form(self) -> CostForm:
        """What a tile costs: rows of A and columns of B down, the result up."""
        b = float(DTYPE.itemsize)
        strip = b * self.k
        return CostForm(
            down=(0.0, strip, strip, 0.0),
            up=(0.0, 0.0, 0.0, b),
            flops=2.0 * self.k,
            memory=(0.0, strip, strip, b),
        )


@dataclass(frozen=True)
class Row:
    """How well and how quickly one kind of fleet was planned for."""

    fleet: str
    devices: int
    plans: int
    median_ratio: float
    worst_ratio: float
    worst_case: str
    share_over_1_10: float
    median_plan_s: float
    worst_plan_s: float


def step_shapes(model: str, tokens: int) -> Iterator[Shape]:
    """The GEMMs of one layer, forward and backward; equal shapes once."""
    seen = set()
    for linear in model_shape(model).linears:
        n, k = linear.n, linear.k
        for kind, sides in (
            ("forward", (tokens, n, k)),
            ("dX", (tokens, k, n)),
            ("dW", (k, n, tokens)),
        ):
            if sides not in seen:
                seen.add(sides)
                yield Shape(f"{model} {linear.name} {kind}, {tokens} tokens", *sides)


def in_offices(fleet: Fleet) -> Fleet:
    """The same devices, each 60 of them behind one line of 200/20 Mbit/s."""
    n_offices = -(-len(fleet.devices) // OFFICE)
    return Fleet(
        tuple(replace(device, site_id=1 + i // OFFICE) for i, device in enumerate(fleet.devices)),
        tuple(replace(OFFICE_LINE, site_id=i + 1) for i in range(n_offices)),
        fleet.server,
    )


FLEETS: Mapping[str, Callable[[int, int], Fleet]] = {
    "equal": lambda n, _: fleets.equal(n),
    "log-normal": fleets.log_normal,
    "tables": fleets.from_table,
    "log-normal in homes": lambda n, seed: fleets.in_homes(fleets.log_normal(n, seed)),
    "tables in homes": lambda n, seed: fleets.from_table(n, seed, home_sizes=(2, 3, 4, 5)),
    "tables in offices": lambda n, seed: in_offices(fleets.from_table(n, seed)),
    "tables, 10 GbE server": lambda n, seed: replace(
        fleets.from_table(n, seed), server=Server(nic_bytes_per_s=1.25e9)
    ),
}


def measure(name: str, n_devices: int, shapes: list[Shape]) -> Row:
    """Plan every shape for every draw of a kind of fleet."""
    ratios: list[tuple[float, str]] = []
    times_s: list[float] = []
    for seed in range(1 if name == "equal" else SEEDS.get(n_devices, 1)):
        fleet = FLEETS[name](n_devices, seed)
        for shape in shapes:
            begin_s = time.perf_counter()
            plan = partition(shape.form, fleet, DTYPE, (shape.m, shape.n))
            times_s.append(time.perf_counter() - begin_s)
            ratios.append((plan.makespan_s / plan.bound_s, f"{shape.name}, draw {seed}"))
    worst, case = max(ratios)
    return Row(
        fleet=name,
        devices=n_devices,
        plans=len(ratios),
        median_ratio=statistics.median(ratio for ratio, _ in ratios),
        worst_ratio=worst,
        worst_case=case,
        share_over_1_10=sum(ratio > 1.10 for ratio, _ in ratios) / len(ratios),
        median_plan_s=statistics.median(times_s),
        worst_plan_s=max(times_s),
    )


@dataclass(frozen=True)
class Step:
    """A whole training step, planned by every family."""

    model: str
    tokens: int
    fleet: str
    devices: int
    family: str
    step_s: float
    ratio: float
    others: Mapping[str, float | None]
    plan_s: float


def whole_step(model: str, tokens: int, name: str, n_devices: int) -> Step:
    """The best plan of a step and its runners-up, no limit of the server; the fastest of three."""
    fleet = replace(FLEETS[name](n_devices, 0), server=Server())
    batch = Batch(tokens=tokens, length=LENGTH)
    times_s = []
    for _ in range(3):
        begin_s = time.perf_counter()
        plan = best_plan(model_shape(model), fleet, batch)
        times_s.append(time.perf_counter() - begin_s)
    return Step(
        model=model,
        tokens=tokens,
        fleet=name,
        devices=n_devices,
        family=plan.best.family,
        step_s=plan.best.step_s,
        ratio=plan.best.step_s / plan.best.bound_s,
        others={each.family: each.step_s for each in plan.alternatives},
        plan_s=min(times_s),
    )


def scaling(model: str, tokens: int, largest: int) -> list[dict[str, float]]:
    """Bytes each way of the busiest device in a step, at each doubling of equal devices.

    Beside them what a device sends, and receives as much, under

    - tensor parallelism: four all-reduces of the activations a layer, two of them forward, two
      backward (Shoeybi et al. 2019, "Megatron-LM"), ``2 (P - 1) / P * b * tokens * hidden`` each
      for a ring (Patarasuk and Yuan 2009), so about ``8 * layers * b * tokens * hidden``;
    - data parallelism: one ring all-reduce of all gradients, about ``2 * b * parameters``.
    """
    shape = model_shape(model)
    b = DTYPE.itemsize
    rows = []
    n_devices = SMALLEST_SCALING
    while n_devices <= largest:
        arrays = FleetArrays.of(fleets.equal(n_devices), DTYPE)
        down, up = np.zeros(n_devices), np.zeros(n_devices)
        for linear in shape.linears:
            n, k = linear.n, linear.k
            for sides in ((tokens, n, k), (tokens, k, n), (k, n, tokens)):
                gemm = Shape(linear.name, *sides)
                cells = cut(gemm.form, arrays, (gemm.m, gemm.n)).cells
                rows_of, cols_of = cells[:, 2] - cells[:, 1], cells[:, 4] - cells[:, 3]
                down += np.bincount(cells[:, 0], gemm.form.down[1] * (rows_of + cols_of), n_devices)
                up += np.bincount(cells[:, 0], gemm.form.up[3] * rows_of * cols_of, n_devices)
        ring = 2 * (n_devices - 1) / n_devices
        rows.append(
            {
                "devices": n_devices,
                "down_bytes_per_device": float(down.max()) * shape.n_layers,
                "up_bytes_per_device": float(up.max()) * shape.n_layers,
                "tensor_parallel_bytes": 4 * ring * shape.n_layers * b * tokens * shape.hidden,
                "data_parallel_bytes": ring * b * shape.n_layers * shape.layer_parameters,
            }
        )
        n_devices *= 2
    return rows


def table(titles: list[str], rows: list[list[str]]) -> str:
    """Columns as wide as they need to be."""
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [titles, *rows]
    ]
    return "\n".join(lines)


def print_ratios(rows: list[Row]) -> None:
    """The first table."""
    titles = ["fleet", "devices", "median", "worst", "> 1.10", "plan ms", "at most", "the worst"]
    print("Makespan / lower bound, and milliseconds to plan one GEMM\n")
    print(
        table(
            titles,
            [
                [
                    row.fleet,
                    str(row.devices),
                    f"{row.median_ratio:.3f}",
                    f"{row.worst_ratio:.3f}",
                    f"{row.share_over_1_10:.1%}",
                    f"{row.median_plan_s * 1e3:.1f}",
                    f"{row.worst_plan_s * 1e3:.1f}",
                    row.worst_case,
                ]
                for row in rows
            ],
        )
    )


def print_steps(steps: list[Step]) -> None:
    """The second table."""
    print(f"\nA step of {STEP_MODEL}, sequences of {LENGTH}, no limit of the server\n")
    titles = ["fleet", "devices", "tokens", "family", "s", "/ bound", "others, s", "plan s"]
    rows = [
        [
            step.fleet,
            str(step.devices),
            str(step.tokens),
            step.family,
            f"{step.step_s:.0f}",
            f"{step.ratio:.2f}",
            ", ".join(f"{name} {s:.0f}" for name, s in step.others.items() if s is not None),
            f"{step.plan_s:.2f}",
        ]
        for step in steps
    ]
    print(table(titles, rows))


def print_scaling(model: str, tokens: int, rows: list[dict[str, float]]) -> None:
    """The last table."""
    print(f"\nGB that a device moves in a step of {model}, {tokens} tokens\n")
    print(
        table(
            ["devices", "down", "up", "tensor parallel, each way", "data parallel, each way"],
            [
                [
                    f"{row['devices']:.0f}",
                    *(f"{value / 1e9:.2f}" for value in list(row.values())[1:]),
                ]
                for row in rows
            ],
        )
    )


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    parser.add_argument("--quick", action="store_true", help="a part of it, in half a minute")
    args = parser.parse_args()

    shapes = [
        shape for model in MODELS for tokens in TOKENS for shape in step_shapes(model, tokens)
    ]
    sizes = list(SEEDS)
    largest = LARGEST_SCALING
    if args.quick:
        shapes, sizes, largest = shapes[::8], [16, 1024], 1024
    ratios = [
        measure(name, n_devices, shapes)
        for name in FLEETS
        for n_devices in sizes
        if not (name == "tables in offices" and n_devices < OFFICE)
    ]
    print_ratios(ratios)
    steps = [
        whole_step(STEP_MODEL, tokens, name, n_devices)
        for name in STEP_FLEETS
        for n_devices in sizes[1:]
        for tokens in TOKENS
    ]
    print_steps(steps)
    bytes_per_device = scaling("llama-2-7b", TOKENS[-1], largest)
    print_scaling("llama-2-7b", TOKENS[-1], bytes_per_device)
    if args.json:
        report = {
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": sys.version.split()[0],
            "numpy": np.__version__,
            "cleave": cleave.__version__,
            "ratios": [asdict(row) for row in ratios],
            "steps": [asdict(step) for step in steps],
            "scaling": bytes_per_device,
        }
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)


if __name__ == "__main__":
    main()
