"""How many events the scheduler handles, how fast it mends a plan, and what churn costs.

``python benchmarks/scheduler.py --json out.json`` drives the scheduler's state machine with
modelled devices: each receives, computes and returns its tasks one after the other, at the rates
of its profile and with the bytes that the scheduler had sent. It prints

- events per second on one core, with 8,192 devices and over 10,000 tasks in flight: each task that
  is done leads to the next being sent;
- milliseconds from the loss of one of 8,192 devices to its unreturned strips being sent elsewhere;
- throughput that is lost when 1 % of 1,024 devices leave each minute and as many join, while
  layers of Llama-2-7B are trained, with GEMMs cut over m x n (block) and cut along k (ksplit).
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import cleave
from cleave.catalog import fleets
from cleave.catalog.models import model_shape
from cleave.core.device import DeviceProfile
from cleave.core.matrix import DType, Matrix
from cleave.core.operations import Gemm
from cleave.core.scheduling.events import (
    CompleteWork,
    DeadlinePassed,
    DeviceJoined,
    DeviceLeft,
    Event,
    FailWork,
    MatrixReleased,
    RunOnHost,
    SendTask,
    TaskFinished,
    WorkSubmitted,
)
from cleave.core.scheduling.scheduler import Scheduler
from cleave.core.scheduling.settings import SchedulerSettings
from cleave.core.work import Fate, Work

DTYPE = DType.BF16
MODEL = "llama-2-7b"
TOKENS = 131_072
FORMS: dict[str, slice] = {"block": slice(0, 1), "ksplit": slice(1, 3)}


class World:
    """A scheduler, and modelled devices that do what it says on a clock of their own."""

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        """Begin at 0 s with no devices."""
        self.scheduler = Scheduler(settings)
        self.now_s = 0.0
        self.handled = 0  # events, and the seconds that the scheduler took for them
        self.answered = 0  # events that were answers
        self.handling_s = 0.0
        self.completed: set[int] = set()
        self._answers: list[tuple[float, int, TaskFinished]] = []
        self._order = itertools.count()
        self._profiles: dict[int, DeviceProfile] = {}
        self._free_s: dict[int, list[float]] = {}  # downlink, processor, uplink

    @property
    def in_flight(self) -> int:
        """Tasks that devices have."""
        return len(self._answers)

    @property
    def devices(self) -> list[DeviceProfile]:
        """Those that are in."""
        return list(self._profiles.values())

    def join(self, profile: DeviceProfile) -> None:
        """A device comes."""
        self._profiles[profile.device_id] = profile
        self._free_s[profile.device_id] = [0.0, 0.0, 0.0]
        self.tell(DeviceJoined(profile))

    def leave(self, device_id: int) -> None:
        """A device goes, and with it all it had."""
        del self._profiles[device_id]
        self.tell(DeviceLeft(device_id, "left"))

    def tell(self, event: Event) -> None:
        """Hand over an event and do what the scheduler says."""
        begin_s = time.perf_counter()
        commands = self.scheduler.handle(event, self.now_s)
        self._deadline_s = self.scheduler.next_deadline_s()  # as the server's timer asks for
        self.handling_s += time.perf_counter() - begin_s
        self.handled += 1
        for command in commands:
            if type(command) is SendTask:
                self._run(command)
            elif type(command) is CompleteWork:
                self.completed.add(command.work_id)
            elif type(command) is FailWork or type(command) is RunOnHost:
                raise AssertionError(f"the devices should do all of it: {command}")

    def step(self, until_s: float = float("inf")) -> bool:
        """The next thing that happens by ``until_s``; whether anything did."""
        answer_s = self._answers[0][0] if self._answers else float("inf")
        due_s = answer_s if self._deadline_s is None else min(answer_s, self._deadline_s)
        if due_s > until_s or due_s == float("inf"):
            self.now_s = max(self.now_s, min(until_s, due_s))
            return False
        self.now_s = max(self.now_s, due_s)
        if due_s < answer_s:
            self.tell(DeadlinePassed())
            return True
        event = heapq.heappop(self._answers)[2]
        if event.device_id in self._profiles:
            self.answered += 1
            self.tell(event)
        return True

    def _run(self, command: SendTask) -> None:
        device = self._profiles[command.device_id]
        free_s = self._free_s[command.device_id]
        task = command.task
        down_bytes = sum(fill.n_bytes for fill in command.fills)
        up_bytes = sum(
            output.block.n_bytes for output in task.outputs if output.fate is Fate.RETURNED
        )
        compute_s = task.flops / device.flops_per_s[DTYPE]
        free_s[0] = max(free_s[0], self.now_s) + down_bytes / device.downlink_bytes_per_s
        free_s[1] = max(free_s[1], free_s[0]) + compute_s
        free_s[2] = max(free_s[2], free_s[1]) + up_bytes / device.uplink_bytes_per_s
        answer = TaskFinished(command.device_id, task.task_id, compute_s)
        back_s = free_s[2] + device.latency_s
        heapq.heappush(self._answers, (back_s, next(self._order), answer))


class Products:
    """The GEMMs of a model's layers, as works of fresh matrices."""

    def __init__(self, kind: str) -> None:
        """Cut over the rectangles of ``FORMS[kind]``."""
        self._forms = FORMS[kind]
        self._ids = itertools.count(1)

    def work(self, name: str, sides: tuple[int, int, int], priority: int = 0) -> WorkSubmitted:
        """A product ``(m, k) @ (k, n)``; ``sides`` are m, n and k."""
        m, n, k = sides
        a, b, out = (Matrix(next(self._ids), *shape, DTYPE) for shape in ((m, k), (k, n), (m, n)))
        gemm = Gemm(name=name, a=a, b=b, out=out, priority=priority)
        return WorkSubmitted(next(self._ids), gemm.forms()[self._forms])

    def layers(self, n_layers: int) -> Iterator[list[WorkSubmitted]]:
        """Forward and backward in order; what is in one list is submitted together.

        The first of a list is waited for. The weights' gradients come beside the inputs' and are
        less urgent, as in training.
        """
        linears = model_shape(MODEL).linears
        for linear in linears * n_layers:
            yield [self.work(linear.name, (TOKENS, linear.n, linear.k))]
        for linear in tuple(reversed(linears)) * n_layers:
            yield [
                self.work(f"{linear.name} dX", (TOKENS, linear.k, linear.n)),
                self.work(f"{linear.name} dW", (linear.k, linear.n, TOKENS), priority=1),
            ]


def release(world: World, works: list[WorkSubmitted]) -> None:
    """Nobody will read the matrices of these works again."""
    for matrix in {id(m): m for work in works for m in _matrices(work.forms[0])}.values():
        world.tell(MatrixReleased(matrix.tensor_id))


def _matrices(work: Work) -> list[Matrix]:
    return [operand.matrix for operand in (*work.inputs, *work.results)]


# Events per second, and the loss of a device -----------------------------------------------------


@dataclass(frozen=True)
class Rate:
    """How fast events are handled.

    Attributes:
        devices: That are in.
        in_flight: Tasks that devices have, on average.
        events: Tasks that were done while it was measured.
        events_per_s: Those per second of the scheduler.
        submit_ms: To plan one further GEMM and queue its strips, if an equal one was planned.
        events_per_s_with_plans: As before, the planning of all GEMMs included.
    """

    devices: int
    in_flight: int
    events: int
    events_per_s: float
    submit_ms: float
    events_per_s_with_plans: float


def busy_world(n_devices: int) -> tuple[World, Callable[[], None]]:
    """Devices that have more to do than they can, and how they are given one more GEMM."""
    world = World(SchedulerSettings(max_ahead=2))
    for profile in fleets.log_normal(n_devices).devices:
        world.join(profile)
    products = Products("block")
    sides = itertools.cycle((TOKENS, linear.n, linear.k) for linear in model_shape(MODEL).linears)

    def submit() -> None:
        world.tell(products.work("forward", next(sides)))

    for _ in range(4):
        submit()
    return world, submit


def measure_rate(world: World, submit: Callable[[], None], n_events: int) -> Rate:
    """Let the devices answer, and give them a new GEMM whenever one is done."""
    in_flight, submit_s = [], []
    n_completed = len(world.completed)
    answered, handling_s = world.answered, world.handling_s
    while world.answered - answered < n_events:
        world.step()
        if len(world.completed) > n_completed:
            n_completed += 1
            in_flight.append(world.in_flight)
            before_s = world.handling_s
            submit()
            submit_s.append(world.handling_s - before_s)
    events, seconds = world.answered - answered, world.handling_s - handling_s
    return Rate(
        devices=len(world.devices),
        in_flight=int(statistics.mean(in_flight or [world.in_flight])),
        events=events,
        events_per_s=events / (seconds - sum(submit_s)),
        submit_ms=1e3 * statistics.median(submit_s or [0.0]),
        events_per_s_with_plans=events / seconds,
    )


@dataclass(frozen=True)
class Loss:
    """How long it takes to give the strips of a lost device to others, in milliseconds."""

    devices: int
    lost: int
    median_ms: float
    worst_ms: float


def measure_loss(world: World, n_lost: int) -> Loss:
    """Lose devices one after the other, while all go on working."""
    rng = random.Random(0)
    times_s = []
    n_devices = len(world.devices)
    for _ in range(n_lost):
        for _ in range(100):
            world.step()
        before_s = world.handling_s
        world.leave(rng.choice(world.devices).device_id)
        times_s.append(world.handling_s - before_s)
    return Loss(n_devices, n_lost, 1e3 * statistics.median(times_s), 1e3 * max(times_s))


# Churn -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Churn:
    """What coming and going costs.

    Attributes:
        form: How GEMMs are cut.
        devices: At any time.
        left: Devices that left, and were followed by an equal one with empty memory.
        calm_s: Modelled seconds of the layers without churn,
        churn_s: and with it.
        lost_ratio: Part of the throughput that was lost.
        wasted_ratio: Operations done for nothing, of all that were done, with churn.
        scheduler_s: Seconds that the scheduler took for its events with churn, plans included.
        events: How many these were.
    """

    form: str
    devices: int
    left: int
    calm_s: float
    churn_s: float
    lost_ratio: float
    wasted_ratio: float
    scheduler_s: float
    events: int


def train(kind: str, n_devices: int, n_layers: int, leaving_per_s: float) -> tuple[World, int]:
    """Forward and backward of some layers; the world then, and how many devices left."""
    rng = random.Random(1)
    world = World()
    for profile in fleets.log_normal(n_devices).devices:
        world.join(profile)
    next_id = itertools.count(n_devices + 1)
    never = float("inf")
    n_left = 0
    next_s = rng.expovariate(leaving_per_s) if leaving_per_s else never

    def run_until(work_ids: set[int]) -> None:
        nonlocal n_left, next_s
        while not work_ids <= world.completed:
            if not world.step(next_s):
                assert next_s < never, "work is left but nothing happens"
                gone = rng.choice(world.devices)
                world.leave(gone.device_id)
                world.join(replace(gone, device_id=next(next_id)))
                n_left += 1
                next_s += rng.expovariate(leaving_per_s)

    trailing: list[WorkSubmitted] = []
    for works in Products(kind).layers(n_layers):
        for work in works:
            world.tell(work)
        run_until({works[0].work_id})
        trailing += works
        done = [work for work in trailing if work.work_id in world.completed]
        release(world, done)
        trailing = [work for work in trailing if work.work_id not in world.completed]
    run_until({work.work_id for work in trailing})
    return world, n_left


def measure_churn(kind: str, n_devices: int, n_layers: int) -> Churn:
    """The same layers without churn and with 1 % of the devices leaving each minute."""
    calm, _ = train(kind, n_devices, n_layers, 0.0)
    world, n_left = train(kind, n_devices, n_layers, 0.01 * n_devices / 60)
    views = world.scheduler.snapshot().devices
    done = sum(view.flops_done for view in views)
    return Churn(
        form=kind,
        devices=n_devices,
        left=n_left,
        calm_s=calm.now_s,
        churn_s=world.now_s,
        lost_ratio=1 - calm.now_s / world.now_s,
        wasted_ratio=sum(view.wasted_flops for view in views) / done,
        scheduler_s=world.handling_s,
        events=world.handled,
    )


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    parser.add_argument("--quick", action="store_true", help="a part of it, in half a minute")
    args = parser.parse_args()
    n_events, n_lost, n_layers = (20_000, 10, 1) if args.quick else (200_000, 100, 8)

    world, submit = busy_world(8192)
    rate = measure_rate(world, submit, n_events)
    print(
        f"{rate.events_per_s:,.0f} events/s ({rate.devices:,} devices, {rate.in_flight:,} tasks "
        f"in flight); {rate.events_per_s_with_plans:,.0f} with the planning of each GEMM, which "
        f"takes {rate.submit_ms:.0f} ms",
        flush=True,
    )
    loss = measure_loss(world, n_lost)
    print(
        f"{loss.median_ms:.1f} ms to give the strips of a lost device to others, "
        f"{loss.worst_ms:.1f} at most ({loss.lost} of {loss.devices:,} devices lost)",
        flush=True,
    )
    churn = []
    for kind in FORMS:
        row = measure_churn(kind, 1024, n_layers)
        churn.append(row)
        print(
            f"{kind}: {row.lost_ratio:.2%} of the throughput lost: {row.calm_s:.1f} s without "
            f"churn, {row.churn_s:.1f} s with {row.left} of {row.devices:,} devices leaving; "
            f"{row.wasted_ratio:.2%} of the operations done for nothing; "
            f"{row.events:,} events in {row.scheduler_s:.1f} s",
            flush=True,
        )
    if args.json:
        report = {
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": sys.version.split()[0],
            "cleave": cleave.__version__,
            "rate": asdict(rate),
            "loss": asdict(loss),
            "churn": [asdict(row) for row in churn],
        }
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)


if __name__ == "__main__":
    main()
