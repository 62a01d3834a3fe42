"""What the scheduler remembers of devices, works and strips, kept consistent."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from cleave.core.device import DeviceProfile
from cleave.core.layout import Layout
from cleave.core.matrix import Region
from cleave.core.scheduling.estimate import Estimator, Prediction
from cleave.core.scheduling.events import CancelTask, Command, DropBlocks, WorkSubmitted
from cleave.core.scheduling.residency import Ledger
from cleave.core.work import Fate, Work


@dataclass(slots=True, eq=False)
class Strip:
    """The unit that is handed out: a tile, or part of one, of one work; open until accepted.

    Attributes:
        task_id: Its number; never used twice.
        work_id: What it is part of.
        tile: Which cells.
        home: The tile it was cut from: the blocks of all its strips are held together.
        key: Order in which strips are taken: (priority, number).
        queued_on: The device in whose queue it is, or None.
        sent_to: Devices that have it now; more than one once it is late.
        on_host: Whether the host has it.
        is_waiting: Whether it waits for a device to come.
        failed_on: Devices that could not do it.
        refusals: How often it was refused.
        bound_to: The only device that may do it (its kept inputs lie there), or None.
    """

    task_id: int
    work_id: int
    tile: Region
    home: Region
    key: tuple[int, int]
    queued_on: int | None = None
    sent_to: set[int] = field(default_factory=set)
    on_host: bool = False
    is_waiting: bool = False
    failed_on: set[int] = field(default_factory=set)
    refusals: int = 0
    bound_to: int | None = None

    @property
    def is_placed(self) -> bool:
        """Whether somebody has it."""
        return bool(self.sent_to) or self.queued_on is not None or self.on_host


@dataclass(slots=True, eq=False)
class WorkState:
    """A submitted work until it is complete, and then until its kept results are released.

    Attributes:
        submitted: What was asked for.
        form: Index of the form taken.
        layout: The plan.
        open: Its strips by task id.
        done: Accepted tiles and who did them.
        followers: Works that come after it.
        is_planned: Whether it has been cut.
        is_complete: Whether completion has been told.
    """

    submitted: WorkSubmitted
    form: int = 0
    layout: Layout = ()
    open: dict[int, Strip] = field(default_factory=dict)
    done: list[tuple[Region, int]] = field(default_factory=list)
    followers: list[int] = field(default_factory=list)
    is_planned: bool = False
    is_complete: bool = False

    @property
    def work_id(self) -> int:
        """Its number."""
        return self.submitted.work_id

    @property
    def work(self) -> Work:
        """The form that was taken."""
        return self.submitted.forms[self.form]

    @property
    def kept(self) -> tuple[int, ...]:
        """Identity of the matrices that it leaves on devices alone."""
        return tuple(
            result.matrix.tensor_id
            for result in self.work.results
            if result.fate is not Fate.RETURNED
        )

    @property
    def is_covered(self) -> bool:
        """Whether every cell has been accepted."""
        return sum(tile.area for tile, _ in self.done) == self.work.whole.area


@dataclass(slots=True, eq=False)
class Sent:
    """A task that a device has now; it ends by exactly one answer.

    Attributes:
        strip: What was sent.
        work: The work it belongs to (which may be complete before the answer comes).
        prediction: What it was expected to take.
        deadline_s: When it is late.
        is_late: Whether that time has passed.
        is_cancelled: Whether the result is no longer wanted.
    """

    strip: Strip
    work: Work
    prediction: Prediction
    deadline_s: float
    is_late: bool = False
    is_cancelled: bool = False


@dataclass(slots=True)
class Tally:
    """What a device has done so far."""

    tasks: int = 0
    flops: float = 0.0
    wasted_flops: float = 0.0
    flops_done: float = 0.0
    compute_s: float = 0.0
    failures: int = 0


@dataclass(slots=True, eq=False)
class DeviceState:
    """One connected device.

    Attributes:
        estimator: Its rates as they are learnt.
        ledger: What it holds.
        planned: The profile that plans use; renewed when the rates have moved.
        queue: Strips it will be sent, first first.
        sent: Tasks it has.
        busy_until_s: When it should be done with those.
        paused: Why its owner comes first at the moment, or None.
        resting_until_s: After failures it is given nothing until then.
        failures_in_row: Failures since the last success.
        failure: What the last of them was.
        is_full: It refused a task for lack of memory; no more until one ends.
        tally: What it has done.
    """

    estimator: Estimator
    ledger: Ledger
    planned: DeviceProfile
    queue: list[Strip] = field(default_factory=list)
    sent: dict[int, Sent] = field(default_factory=dict)
    busy_until_s: float = 0.0
    paused: str | None = None
    resting_until_s: float = 0.0
    failures_in_row: int = 0
    failure: str = ""
    is_full: bool = False
    tally: Tally = field(default_factory=Tally)

    @property
    def device_id(self) -> int:
        """Its number."""
        return self.planned.device_id

    @property
    def is_late(self) -> bool:
        """Whether it owes an answer for longer than expected."""
        return any(sent.is_late for sent in self.sent.values())

    def is_available(self, now_s: float) -> bool:
        """Whether it may be given tasks now."""
        return self.paused is None and self.resting_until_s <= now_s and not self.is_late

    def can_run(self, work: Work) -> bool:
        """Whether it has the ops and the element type."""
        return self.planned.can_run(work.ops, work.dtype)


class Book:
    """All devices, works and open strips, and the commands that a change of them asks for."""

    def __init__(self) -> None:
        """Begin empty."""
        self.devices: dict[int, DeviceState] = {}
        self.works: dict[int, WorkState] = {}
        self.strips: dict[int, Strip] = {}
        self.commands: list[Command] = []
        self.now_s = 0.0
        self.planned_bytes = 0
        self._next_task_id = 1
        self._late: dict[int, Strip] = {}

    def available(self) -> list[DeviceState]:
        """Devices that may be given tasks now, in order of joining."""
        return [d for d in self.devices.values() if d.is_available(self.now_s)]

    def work_of(self, strip: Strip) -> Work:
        """The work that a strip is part of."""
        return self.works[strip.work_id].work

    def new_strip(self, state: WorkState, tile: Region, home: Region) -> Strip:
        """A fresh open strip that nobody has yet."""
        task_id = self._next_task_id
        self._next_task_id += 1
        key = (state.work.priority, task_id)
        strip = Strip(task_id, state.work_id, tile, home, key)
        self.strips[task_id] = strip
        state.open[task_id] = strip
        return strip

    def close_strip(self, strip: Strip) -> None:
        """Nobody shall work on it any more: taken out of queues, cancelled where it was sent."""
        for device_id in tuple(strip.sent_to):
            self.cancel(self.devices[device_id], strip)
        self.dequeue(strip)
        del self.strips[strip.task_id]
        self._late.pop(strip.task_id, None)
        state = self.works.get(strip.work_id)
        if state is not None:
            state.open.pop(strip.task_id, None)

    def enqueue(self, device: DeviceState, strip: Strip) -> None:
        """Put a strip in its place in a device's queue."""
        strip.queued_on = device.device_id
        insort(device.queue, strip, key=lambda queued: queued.key)

    def dequeue(self, strip: Strip) -> None:
        """Take a strip out of the queue it is in, if it is in one."""
        if strip.queued_on is not None:
            self.devices[strip.queued_on].queue.remove(strip)
            strip.queued_on = None

    def mark_late(self, sent: Sent) -> None:
        """A device has not answered for a task in time."""
        sent.is_late = True
        if not sent.is_cancelled:
            self._late[sent.strip.task_id] = sent.strip

    def late_strips(self) -> list[Strip]:
        """Open strips that some device was or is late with."""
        return list(self._late.values())

    def cancel(self, device: DeviceState, strip: Strip) -> None:
        """Tell a device to drop a task; it has the task until it answers."""
        sent = device.sent[strip.task_id]
        sent.is_cancelled = True
        strip.sent_to.discard(device.device_id)
        self.commands.append(CancelTask(device.device_id, strip.task_id))

    def end(self, device: DeviceState, task_id: int, *, refused: bool = False) -> Sent | None:
        """A device has answered for a task: it has it no longer. None if it never had it."""
        sent = device.sent.pop(task_id, None)
        if sent is not None:
            if not sent.is_cancelled:
                sent.strip.sent_to.discard(device.device_id)
            device.is_full = False
            ledger = device.ledger
            self.drop(device, ledger.abandon(task_id) if refused else ledger.unload(task_id))
        return sent

    def take_queue(self, device: DeviceState) -> list[Strip]:
        """Empty a device's queue (bound strips stay); the strips that nobody has now."""
        queued = [strip for strip in device.queue if strip.bound_to is None]
        for strip in queued:
            self.dequeue(strip)
        return [strip for strip in queued if not strip.is_placed]

    def take_all(self, device: DeviceState) -> list[Strip]:
        """A device has dropped all its tasks and its queue is taken; the strips nobody has now."""
        dropped = [sent.strip for sent in device.sent.values() if not sent.is_cancelled]
        for task_id in tuple(device.sent):
            sent = self.end(device, task_id)
            device.tally.wasted_flops += 0.0 if sent is None else sent.prediction.flops
        queued = self.take_queue(device)
        return [strip for strip in dropped if not strip.is_placed] + queued

    def remove(self, device: DeviceState) -> list[Strip]:
        """A device is gone; the strips that nobody has now."""
        lost = [sent.strip for sent in device.sent.values() if not sent.is_cancelled]
        for strip in lost:
            strip.sent_to.discard(device.device_id)
        for strip in device.queue:
            strip.queued_on = None
        lost += [strip for strip in device.queue if strip not in lost]
        del self.devices[device.device_id]
        return [strip for strip in lost if not strip.is_placed]

    def drop(self, device: DeviceState, handles: tuple[int, ...]) -> None:
        """Tell a device to forget blocks, if there are any."""
        if handles:
            self.commands.append(DropBlocks(device.device_id, handles))
