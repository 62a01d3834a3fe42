"""The scheduler: a state machine that has work done by devices, through all churn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cleave.core.planning.choice import Planner
from cleave.core.scheduling.book import Book
from cleave.core.scheduling.dispatch import Dispatcher
from cleave.core.scheduling.estimate import Estimator
from cleave.core.scheduling.events import (
    AcceptResult,
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
from cleave.core.scheduling.invariants import check_book
from cleave.core.scheduling.lineage import Lineage
from cleave.core.scheduling.placing import Placer
from cleave.core.scheduling.residency import Ledger
from cleave.core.scheduling.settings import HOST, SchedulerSettings
from cleave.core.scheduling.snapshot import DeviceView, Snapshot, device_view, take_snapshot
from cleave.core.scheduling.state import DeviceState, Sent, Strip, WorkState
from cleave.core.work import Work

_MOVED = 1.02  # a rate that differs by this factor from the planned one is planned with anew


class Scheduler:
    """Decides which device does what. `handle` is the only door; the caller owns clock and sockets.

    `invariants.py` says what holds after every event; `docs/how-it-works.md` draws the states.
    """

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        """Begin with no devices and no work."""
        self.settings = settings or SchedulerSettings()
        self._book = Book()
        self._planner = Planner()
        self._placer = Placer(self._book, self._planner, self.settings)
        self._lineage = Lineage(self._book, self._placer)
        self._dispatcher = Dispatcher(self._book, self._placer, self.settings)
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
        self._book.begin(now_s)
        handler(event)
        self._dispatcher.pump()
        return self._book.commands

    def next_deadline_s(self) -> float | None:
        """When `DeadlinePassed` is due, or None."""
        return self._book.next_deadline_s()

    def snapshot(self) -> Snapshot:
        """A frozen picture of all state."""
        return take_snapshot(self._book)

    def devices(self) -> list[DeviceView]:
        """How the devices stand, in order of joining."""
        return [device_view(device, self._book.now_s) for device in self._book.devices.values()]

    def device(self, device_id: int) -> DeviceView:
        """How one device stands.

        Raises:
            KeyError: If it is not in.
        """
        return device_view(self._book.devices[device_id], self._book.now_s)

    @property
    def planned_bytes(self) -> int:
        """What all plans so far said must move, both ways."""
        return self._book.planned_bytes

    def check(self) -> None:
        """Raise AssertionError if the state is not sound; for tests."""
        check_book(self._book)

    def is_able(self, work: Work) -> bool:
        """Whether any device that is in has the ops and the element type."""
        ops, dtype = work.ops, work.dtype
        devices = self._book.devices.values()
        return any(device.estimator.planned.can_run(ops, dtype) for device in devices)

    def seconds(self, forms: Sequence[Work]) -> float | None:
        """Expected time of work on the devices as they are; None if no device can do it."""
        choice = self._planner.choose(forms, (), self._placer.candidates())
        return None if choice is None else choice.seconds

    # Devices -------------------------------------------------------------------------------------

    def _joined(self, event: DeviceJoined) -> None:
        profile = event.profile
        if profile.device_id in self._book.devices or profile.device_id == HOST:
            raise ValueError(f"device id {profile.device_id} is taken: ids are never used twice")
        self._book.add(
            DeviceState(profile.device_id, Estimator(profile), Ledger(profile.memory_bytes))
        )
        self._planner.forget()

    def _left(self, event: DeviceLeft) -> None:
        device = self._book.devices.get(event.device_id)
        if device is not None:
            lost = self._book.remove(device)
            self._planner.forget()
            self._placer.place(lost + self._lineage.left(event.device_id))

    def _paused(self, event: DevicePaused) -> None:
        device = self._book.devices.get(event.device_id)
        if device is not None:
            device.paused = event.reason
            self._placer.place(self._book.take_all(device))

    def _resumed(self, event: DeviceResumed) -> None:
        device = self._book.devices.get(event.device_id)
        if device is not None:
            device.paused = None
            self._book.revive(device)

    # Work ----------------------------------------------------------------------------------------

    def _submitted(self, event: WorkSubmitted) -> None:
        if event.work_id in self._book.works:
            raise ValueError(f"work id {event.work_id} is taken: ids are never used twice")
        state = self._book.new_work(event)
        before = [self._book.works[work] for work in event.after if work in self._book.works]
        for producer in before:
            producer.followers.append(event.work_id)
        if event.pinned:
            state.is_planned = True
            self._lineage.pin(state, before)
        elif all(producer.is_complete for producer in before):
            self._plan(state)

    def _plan(self, state: WorkState) -> None:
        state.is_planned = True
        if state.n_missing:
            self._placer.plan(state)
        else:
            self._complete(state)

    def _accept(self, strip: Strip, device_id: int) -> None:
        state = strip.state
        self._book.close_strip(strip)
        if not strip.is_again:
            self._book.commands.append(
                AcceptResult(device_id, strip.task_id, state.submitted.work_id, strip.tile)
            )
        state.accept(strip.tile, device_id)
        if state.followers and device_id != HOST:
            self._lineage.accepted(strip, self._book.devices[device_id])
        if not state.n_missing and not state.open:
            self._complete(state)

    def _complete(self, state: WorkState) -> None:
        if not state.is_complete:
            state.is_complete = True
            self._book.commands.append(CompleteWork(state.work_id, state.form, state.layout))
            for follower_id in state.followers:
                follower = self._book.works.get(follower_id)
                if follower is not None and self._is_ready(follower):
                    self._plan(follower)
        self._lineage.retire(state)

    def _is_ready(self, state: WorkState) -> bool:
        before = (self._book.works.get(work_id) for work_id in state.submitted.after)
        return not state.is_planned and all(work is None or work.is_complete for work in before)

    def _matrix_released(self, event: MatrixReleased) -> None:
        for device in self._book.devices.values():
            self._book.drop(device, device.ledger.release(event.tensor_id))
        self._lineage.released(event.tensor_id)

    # Results -------------------------------------------------------------------------------------

    def _finished(self, event: TaskFinished) -> None:
        device = self._book.devices.get(event.device_id)
        if device is None:
            return
        sent = device.sent.get(event.task_id)
        if sent is None:
            return
        strip = sent.strip
        if strip.state.kept and not sent.is_cancelled:
            device.ledger.keep(event.task_id)
        self._book.end(device, event.task_id)
        device.failures_in_row = 0
        tally = device.tally
        tally.tasks += 1
        tally.flops_done += strip.flops
        tally.compute_s += event.compute_s
        device.estimator.observe(
            sent.prediction,
            strip.state.dtype,
            compute_s=event.compute_s,
            now_s=self._book.now_s,
        )
        if sent.is_cancelled:
            tally.wasted_flops += strip.flops
            return
        tally.flops += strip.flops
        self._accept(strip, event.device_id)
        if self._book.now_s >= self._planned_s + self.settings.replan_s:
            self._renew_plans(device)

    def _renew_plans(self, device: DeviceState) -> None:
        """Plan with the rates as they are known now, if a device's differ enough to matter."""
        if device.estimator.drift > self.settings.replan_ratio:
            self._planned_s = self._book.now_s
            for each in self._book.devices.values():
                if each.estimator.drift > _MOVED:
                    each.estimator.renew()
            self._planner.forget()

    def _refused(self, event: TaskRefused) -> None:
        device, sent = self._ended(event.device_id, event.task_id, refused=True)
        if device is None:
            return
        if not device.ledger.forget(event.missing):
            self._book.part_with(device, "it lost results that it was to keep")
        if sent is not None and not sent.is_cancelled:
            sent.strip.refusals += 1
            if sent.strip.refusals > self.settings.max_refusals:
                error = f"refused {sent.strip.refusals} times: {event.reason}"
                self._failed_at(device, sent, error)
            elif event.reason == "memory":
                self._place_again(device, sent.strip, self._without_memory(device))
            else:
                self._place_again(device, sent.strip, is_same=True)

    def _without_memory(self, device: DeviceState) -> bool:
        """A device has less memory than it says; whether it may take the same strip later.

        If it has nothing else in flight, no plan counts on more than half of what it lends any
        more: else every strip would be refused first.
        """
        device.is_full = bool(device.sent)
        if not device.sent:
            self._book.drop(device, device.ledger.limit(device.estimator.halve_memory()))
            self._planner.forget()
        return device.is_full

    def _place_again(self, device: DeviceState, strip: Strip, is_same: bool) -> None:
        """Have a refused strip done: sent again as it is, or cut anew for the memory there is."""
        if strip.is_placed or strip.task_id not in self._book.strips:
            return  # another has it too, or is about to; or its inputs are made again first
        is_here = device.is_available(self._book.now_s)
        if is_here and (is_same or strip.bound_to is not None):
            self._book.enqueue(device, strip)
        else:
            self._placer.place([strip])

    def _failed(self, event: TaskFailed) -> None:
        device, sent = self._ended(event.device_id, event.task_id)
        if device is not None and sent is not None:
            self._failed_at(device, sent, event.error)

    def _failed_at(self, device: DeviceState, sent: Sent, error: str) -> None:
        """A device could not do a task: it rests, and is closed if that goes on."""
        device.tally.failures += 1
        device.failures_in_row += 1
        device.failure = error
        self._book.rest(device, self.settings.rest_s * 2.0 ** min(10, device.failures_in_row - 1))
        if not sent.is_cancelled and sent.strip.task_id in self._book.strips:
            self._placer.give_up(device, sent.strip)
        self._placer.place(self._book.take_queue(device))
        if device.failures_in_row >= self.settings.max_failures_in_row:
            tasks = f"{device.failures_in_row} tasks failed one after the other"
            self._book.part_with(device, f"{tasks}, the last with: {error}")

    def _cancelled(self, event: TaskCancelled) -> None:
        device, sent = self._ended(event.device_id, event.task_id)
        if device is None or sent is None:
            return
        device.tally.wasted_flops += sent.prediction.flops
        if not sent.is_cancelled:
            self._placer.give_up(device, sent.strip)

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
            self._placer.fail(strip.state, event.error)

    def _deadline_passed(self, event: DeadlinePassed) -> None:
        del event
        overdue = self._book.overdue()
        self._placer.place([strip for each in overdue for strip in self._book.take_queue(each)])
