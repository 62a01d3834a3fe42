"""The scheduler: a state machine that has work done by devices, through all churn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cleave.core.planning.choice import Planner
from cleave.core.scheduling.dispatch import Dispatcher
from cleave.core.scheduling.estimate import Estimator
from cleave.core.scheduling.events import (
    AcceptResult,
    CloseDevice,
    Command,
    CompleteWork,
    DeadlinePassed,
    DeviceJoined,
    DeviceLeft,
    DevicePaused,
    DeviceResumed,
    Event,
    HostFailed,
    HostFinished,
    MatrixReleased,
    TaskCancelled,
    TaskFailed,
    TaskFinished,
    TaskRefused,
    WorkSubmitted,
)
from cleave.core.scheduling.residency import Ledger
from cleave.core.scheduling.settings import HOST, SchedulerSettings
from cleave.core.scheduling.snapshot import Snapshot, take_snapshot
from cleave.core.scheduling.state import Book, DeviceState, Sent, Strip, WorkState
from cleave.core.work import Work


class Scheduler:
    """Decides which device does what. `handle` is the only door; the caller owns clock and sockets.

    `invariants.py` says what holds after every event; `docs/how-it-works.md` draws the states.
    """

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        """Begin with no devices and no work."""
        self.settings = settings or SchedulerSettings()
        self._book = Book()
        self._planner = Planner()
        self._dispatcher = Dispatcher(self._book, self._planner, self.settings)
        self._released: set[int] = set()
        self._planned_s = 0.0
        self._handlers: dict[type, Callable[[Any], None]] = {
            DeviceJoined: self._joined,
            DeviceLeft: self._left,
            DevicePaused: self._paused,
            DeviceResumed: self._resumed,
            WorkSubmitted: self._submitted,
            MatrixReleased: self._matrix_released,
            TaskFinished: self._finished,
            TaskRefused: self._refused,
            TaskFailed: self._failed,
            TaskCancelled: self._cancelled,
            HostFinished: self._host_finished,
            HostFailed: self._host_failed,
            DeadlinePassed: self._deadline_passed,
        }

    def handle(self, event: Event, now_s: float) -> list[Command]:
        """What is to be done about an event.

        Args:
            event: What happened.
            now_s: A monotonic clock's time, never less than at the last call.

        Raises:
            TypeError: If the event is of no known kind.
        """
        handler = self._handlers.get(type(event))
        if handler is None:
            raise TypeError(f"unknown event {event!r}")
        self._book.now_s = now_s
        self._book.commands = []
        handler(event)
        self._dispatcher.pump()
        return self._book.commands

    def next_deadline_s(self) -> float | None:
        """When `DeadlinePassed` is due, or None."""
        times: list[float] = []
        for device in self._book.devices.values():
            times += [sent.deadline_s for sent in device.sent.values() if not sent.is_late]
            if device.resting_until_s > self._book.now_s:
                times.append(device.resting_until_s)
        return min(times, default=None)

    def snapshot(self) -> Snapshot:
        """A frozen picture of all state."""
        return take_snapshot(self._book)

    def is_able(self, work: Work) -> bool:
        """Whether any device that is in has the ops and the element type."""
        return any(device.can_run(work) for device in self._book.devices.values())

    def seconds(self, forms: Sequence[Work]) -> float | None:
        """Expected time of work on the devices as they are; None if no device can do it."""
        choice = self._planner.choose(forms, (), self._dispatcher.candidates())
        return None if choice is None else choice.seconds

    # Devices -------------------------------------------------------------------------------------

    def _joined(self, event: DeviceJoined) -> None:
        profile = event.profile
        if profile.device_id in self._book.devices or profile.device_id == HOST:
            raise ValueError(f"device id {profile.device_id} is taken: ids are never used twice")
        self._book.devices[profile.device_id] = DeviceState(
            estimator=Estimator(profile), ledger=Ledger(profile.memory_bytes), planned=profile
        )
        self._planner.forget()

    def _left(self, event: DeviceLeft) -> None:
        device = self._book.devices.get(event.device_id)
        if device is not None:
            lost = self._book.remove(device)
            self._planner.forget()
            self._dispatcher.place(lost + self._reopen(event.device_id))

    def _paused(self, event: DevicePaused) -> None:
        device = self._book.devices.get(event.device_id)
        if device is not None:
            device.paused = event.reason
            self._dispatcher.place(self._book.take_all(device))

    def _resumed(self, event: DeviceResumed) -> None:
        device = self._book.devices.get(event.device_id)
        if device is not None:
            device.paused = None

    def _reopen(self, device_id: int) -> list[Strip]:
        """Strips of works whose kept results went with a device and are still wanted."""
        lost: list[Strip] = []
        for state in self._book.works.values():
            gone = [tile for tile, holder in state.done if holder == device_id]
            if not gone or self._released.issuperset(state.kept):
                continue
            state.done = [entry for entry in state.done if entry[1] != device_id]
            if not state.submitted.pinned:  # pinned work follows when its producer is done again
                lost += [self._book.new_strip(state, tile, tile) for tile in gone]
        return lost

    # Work ----------------------------------------------------------------------------------------

    def _submitted(self, event: WorkSubmitted) -> None:
        if event.work_id in self._book.works:
            raise ValueError(f"work id {event.work_id} is taken: ids are never used twice")
        state = WorkState(event)
        self._book.works[event.work_id] = state
        before = [self._book.works[work] for work in event.after if work in self._book.works]
        for producer in before:
            producer.followers.append(event.work_id)
        if event.pinned:
            self._pin(state, before)
        elif all(producer.is_complete for producer in before):
            self._plan(state)

    def _pin(self, state: WorkState, before: Sequence[WorkState]) -> None:
        state.is_planned = True
        if len(before) != 1 or not before[0].kept:
            self._dispatcher.fail(
                state, f"{state.work.name}: pinned to work that keeps nothing on devices"
            )
            return
        for tile, device_id in before[0].done:
            self._dispatcher.bind(state, tile, self._book.devices[device_id])

    def _plan(self, state: WorkState) -> None:
        state.is_planned = True
        if state.work.whole.area == 0:
            self._complete(state)
        else:
            self._dispatcher.plan(state)

    def _accept(self, strip: Strip, device_id: int) -> None:
        state = self._book.works[strip.work_id]
        self._book.close_strip(strip)
        self._book.commands.append(
            AcceptResult(device_id, strip.task_id, strip.work_id, strip.tile)
        )
        state.done.append((strip.tile, device_id))
        for follower_id in state.followers:
            follower = self._book.works.get(follower_id)
            if follower is not None and follower.submitted.pinned:
                self._dispatcher.bind(follower, strip.tile, self._book.devices[device_id])
        if not state.open and state.is_covered:
            self._complete(state)

    def _complete(self, state: WorkState) -> None:
        if not state.is_complete:
            state.is_complete = True
            self._book.commands.append(CompleteWork(state.work_id, state.form, state.layout))
            for follower_id in state.followers:
                follower = self._book.works.get(follower_id)
                if follower is not None and self._is_ready(follower):
                    self._plan(follower)
        self._retire(state)

    def _is_ready(self, state: WorkState) -> bool:
        before = (self._book.works.get(work_id) for work_id in state.submitted.after)
        return not state.is_planned and all(work is None or work.is_complete for work in before)

    def _retire(self, state: WorkState) -> None:
        """Forget a work that nobody can need again."""
        if state.is_complete and not state.open and self._released.issuperset(state.kept):
            self._book.works.pop(state.work_id, None)
            self._released.difference_update(state.kept)

    def _matrix_released(self, event: MatrixReleased) -> None:
        for device in self._book.devices.values():
            self._book.drop(device, device.ledger.release(event.tensor_id))
        key = event.tensor_id
        producers = [state for state in self._book.works.values() if key in state.kept]
        if producers:
            self._released.add(key)
        for state in producers:
            self._retire(state)

    # Results -------------------------------------------------------------------------------------

    def _finished(self, event: TaskFinished) -> None:
        device, sent = self._ended(event.device_id, event.task_id)
        if device is None or sent is None:
            return
        device.failures_in_row = 0
        device.tally.tasks += 1
        device.tally.flops_done += sent.prediction.flops
        device.tally.compute_s += event.compute_s
        device.estimator.observe(
            sent.prediction, sent.work.dtype, compute_s=event.compute_s, now_s=self._book.now_s
        )
        if sent.is_cancelled:
            device.tally.wasted_flops += sent.prediction.flops
            return
        device.tally.flops += sent.prediction.flops
        self._accept(sent.strip, event.device_id)
        self._renew_plans(device)

    def _renew_plans(self, device: DeviceState) -> None:
        """Plan with the rates as they are known now, if a device's differ enough to matter."""
        due_s = self._planned_s + self.settings.replan_s
        if self._book.now_s < due_s:
            return
        if device.estimator.moved(device.planned) > self.settings.replan_ratio:
            self._planned_s = self._book.now_s
            for each in self._book.devices.values():
                each.planned = each.estimator.current()
            self._planner.forget()

    def _refused(self, event: TaskRefused) -> None:
        device, sent = self._ended(event.device_id, event.task_id, refused=True)
        if device is not None:
            device.ledger.forget(event.missing)
        if device is None or sent is None or sent.is_cancelled:
            return
        strip = sent.strip
        strip.refusals += 1
        if strip.refusals > self.settings.max_refusals:
            self._failed_at(device, sent, f"refused {strip.refusals} times: {event.reason}")
            return
        if event.reason == "memory":
            device.is_full = bool(device.sent)
            if not device.sent:
                self._book.drop(device, device.ledger.drop_unused())
        if strip.is_placed:
            return  # another has it too, or is about to
        if device.is_available(self._book.now_s):
            self._book.enqueue(device, strip)
        else:
            self._dispatcher.place([strip])

    def _failed(self, event: TaskFailed) -> None:
        device, sent = self._ended(event.device_id, event.task_id)
        if device is not None and sent is not None:
            self._failed_at(device, sent, event.error)

    def _failed_at(self, device: DeviceState, sent: Sent, error: str) -> None:
        """A device could not do a task: it rests, and is closed if that goes on."""
        device.tally.failures += 1
        device.failures_in_row += 1
        device.failure = error
        rest_s = self.settings.rest_s * 2.0 ** min(10, device.failures_in_row - 1)
        device.resting_until_s = self._book.now_s + rest_s
        if not sent.is_cancelled:
            self._dispatcher.give_up(device, sent.strip)
        self._dispatcher.place(self._book.take_queue(device))
        if device.failures_in_row >= self.settings.max_failures_in_row:
            self._book.commands.append(
                CloseDevice(
                    device.device_id,
                    f"{device.failures_in_row} tasks failed one after the other, "
                    f"the last with: {error}",
                )
            )

    def _cancelled(self, event: TaskCancelled) -> None:
        device, sent = self._ended(event.device_id, event.task_id)
        if device is None or sent is None:
            return
        device.tally.wasted_flops += sent.prediction.flops
        if not sent.is_cancelled:
            self._dispatcher.give_up(device, sent.strip)

    def _ended(
        self, device_id: int, task_id: int, *, refused: bool = False
    ) -> tuple[DeviceState | None, Sent | None]:
        device = self._book.devices.get(device_id)
        if device is None:
            return None, None
        return device, self._book.end(device, task_id, refused=refused)

    def _host_finished(self, event: HostFinished) -> None:
        strip = self._book.strips.get(event.task_id)
        if strip is not None:
            self._accept(strip, HOST)

    def _host_failed(self, event: HostFailed) -> None:
        strip = self._book.strips.get(event.task_id)
        if strip is not None:
            self._dispatcher.fail(self._book.works[strip.work_id], event.error)

    def _deadline_passed(self, event: DeadlinePassed) -> None:
        del event
        for device in tuple(self._book.devices.values()):
            overdue = [
                sent
                for sent in device.sent.values()
                if not sent.is_late and sent.deadline_s <= self._book.now_s
            ]
            for sent in overdue:
                self._book.mark_late(sent)
            if overdue:
                self._dispatcher.place(self._book.take_queue(device))
