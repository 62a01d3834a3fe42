"""Who gets which strip, and when it is sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from cleave.core.device import DeviceProfile
from cleave.core.matrix import Region
from cleave.core.planning.choice import Planner, result_bytes
from cleave.core.planning.cost import CostForm
from cleave.core.planning.strips import strips
from cleave.core.scheduling.estimate import Prediction
from cleave.core.scheduling.events import FailWork, RunOnHost, SendTask
from cleave.core.scheduling.residency import Ledger, Loading, Need
from cleave.core.scheduling.settings import SchedulerSettings
from cleave.core.scheduling.state import Book, DeviceState, Sent, Strip, WorkState
from cleave.core.work import Task, TaskInput, TaskOutput, Work
from cleave.errors import PlanError

_WORTH_STEALING = 1.25  # a stolen strip brings operands that its owner holds: gain enough for that


class Dispatcher:
    """Places strips on devices or the host, and sends them as there is room."""

    def __init__(self, book: Book, planner: Planner, settings: SchedulerSettings) -> None:
        """Work on a book that others may change between calls."""
        self._book = book
        self._planner = planner
        self._settings = settings

    # Placing -------------------------------------------------------------------------------------

    def candidates(self) -> list[tuple[DeviceProfile, Ledger]]:
        """What the planner needs of the devices that may be given tasks now."""
        return [(device.planned, device.ledger) for device in self._book.available()]

    def plan(self, state: WorkState) -> None:
        """Choose form and layout of a whole work and queue its strips."""
        event = state.submitted
        choice = self._planner.choose(event.forms, event.hints, self.candidates())
        if choice is None:
            self._without_device(self._book.new_strip(state, state.work.whole, state.work.whole))
            return
        state.form, state.layout = choice.form, choice.layout
        self._book.planned_bytes += choice.n_bytes
        for placement in choice.layout:
            device = self._book.devices[placement.device_id]
            self._enqueue_tile(state, placement.tile, device, frozenset())

    def place(self, lost: Sequence[Strip]) -> None:
        """Cut anew what these strips cover, over all devices that are left."""
        groups: dict[tuple[int, frozenset[int]], list[Strip]] = {}
        for strip in lost:
            if strip.bound_to is not None:
                self._place_bound(strip)
            else:
                groups.setdefault((strip.work_id, frozenset(strip.failed_on)), []).append(strip)
        for (work_id, failed_on), group in groups.items():
            state = self._book.works.get(work_id)
            if state is not None:
                self._place_group(state, failed_on, group)

    def bind(self, state: WorkState, tile: Region, device: DeviceState) -> None:
        """Queue a tile of pinned work on the device where its producer's tile lies."""
        if not any(region.contains(tile) for region, _ in state.done):
            strip = self._book.new_strip(state, tile, tile)
            strip.bound_to = device.device_id
            self._book.enqueue(device, strip)

    def give_up(self, device: DeviceState, strip: Strip) -> None:
        """This device cannot do this strip: somebody else must, if nobody is at it already."""
        strip.failed_on.add(device.device_id)
        if not strip.is_placed:
            self.place([strip])

    def _overtake(self, strip: Strip) -> None:
        """A device is late with a strip: another does it too, and the first answer wins."""
        if strip.bound_to is not None or strip.on_host or strip.queued_on is not None:
            return
        devices = self._book.devices
        if not strip.sent_to or not all(devices[holder].is_late for holder in strip.sent_to):
            return
        able = self._able(self._book.work_of(strip), strip.failed_on | strip.sent_to)
        if able:
            quickest = min(able, key=lambda device: (self._backlog_s(device), device.device_id))
            strip.home = strip.tile
            self._book.enqueue(quickest, strip)
        elif self._host_may_do(strip):
            self._run_on_host(strip)

    def fail(self, state: WorkState, error: str) -> None:
        """Give a work up: nothing of it is left anywhere."""
        for strip in tuple(state.open.values()):
            self._book.close_strip(strip)
        self._book.works.pop(state.work_id, None)
        self._book.commands.append(FailWork(state.work_id, error))

    def _place_group(
        self, state: WorkState, failed_on: frozenset[int], group: Sequence[Strip]
    ) -> None:
        able = self._able(state.work, failed_on)
        is_hopeless = len(failed_on) >= self._settings.max_attempts
        if not able or (is_hopeless and self._host_may_do(group[0])):
            for strip in group:
                if strip.task_id in self._book.strips:  # the first may have ended all the work
                    self._without_device(strip)
            return
        profiles = [device.planned for device in able]
        for strip in group:
            self._book.close_strip(strip)
        for region in merged(strip.tile for strip in group):
            layout = self._planner.tiles(state.work, region, profiles)
            for placement in layout:
                device = self._book.devices[placement.device_id]
                self._enqueue_tile(state, placement.tile, device, failed_on)
            if not layout:
                strip = self._book.new_strip(state, region, region)
                strip.failed_on |= {device.device_id for device in able}
                self._without_device(strip)
                if state.work_id not in self._book.works:
                    return

    def _place_bound(self, strip: Strip) -> None:
        state = self._book.works[strip.work_id]
        device = self._book.devices.get(strip.bound_to or 0)
        self._book.close_strip(strip)
        if device is None:
            return  # made again when the producer's tile has been
        if device.device_id in strip.failed_on:
            self.fail(
                state,
                f"{state.work.name}: its inputs are kept on device {device.device_id}, "
                "which cannot run it",
            )
            return
        self.bind(state, strip.tile, device)

    def _enqueue_tile(
        self, state: WorkState, tile: Region, device: DeviceState, failed_on: frozenset[int]
    ) -> None:
        for part in self._parts(state.work, tile, device):
            strip = self._book.new_strip(state, part, tile)
            strip.failed_on |= failed_on
            self._book.enqueue(device, strip)

    def _parts(self, work: Work, tile: Region, device: DeviceState) -> tuple[Region, ...]:
        form, target_s = CostForm.of(work), self._settings.strip_s
        try:
            return strips(tile, form, device.planned, work=work, target_s=target_s)
        except PlanError:
            return (tile,)  # found not to fit when it is to be sent, and then placed elsewhere

    def _able(self, work: Work, excluded: Iterable[int]) -> list[DeviceState]:
        barred = frozenset(excluded)
        return [
            device
            for device in self._book.available()
            if device.device_id not in barred and device.can_run(work)
        ]

    def _without_device(self, strip: Strip) -> None:
        state = self._book.works[strip.work_id]
        present = [device for device in self._book.devices.values() if device.can_run(state.work)]
        if self._host_may_do(strip):
            self._run_on_host(strip)
        elif not present or any(d.device_id not in strip.failed_on for d in present):
            strip.is_waiting = True
        elif again := {d.device_id for d in present if self._may_try_again(d)}:
            strip.failed_on -= again
            strip.is_waiting = True
        else:
            why = next((f" ({d.failure})" for d in present if d.failures_in_row), "")
            self.fail(
                state,
                f"{state.work.name} ({state.work.n_rows} x {state.work.n_cols}): no device that is "
                f"here can do it{why}, and the host may not step in",
            )

    def _may_try_again(self, device: DeviceState) -> bool:
        """Whether a device rests after failures that may have been no more than bad luck."""
        is_resting = device.resting_until_s > self._book.now_s
        return is_resting and device.failures_in_row < self._settings.max_attempts

    def _host_may_do(self, strip: Strip) -> bool:
        return self._settings.host_steps_in and not self._book.works[strip.work_id].kept

    def _run_on_host(self, strip: Strip) -> None:
        strip.on_host = True
        work = self._book.work_of(strip)
        inputs = tuple(
            TaskInput(operand.block(strip.tile), operand.region(strip.tile))
            for operand in work.inputs
        )
        self._book.commands.append(RunOnHost(_task(strip, work, inputs), strip.work_id))

    # Sending -------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Have late strips overtaken, and give every device that may take more something to do."""
        for strip in self._book.late_strips():
            self._overtake(strip)
        available = self._book.available()
        if not available:
            return
        waiting = [strip for strip in self._book.strips.values() if strip.is_waiting]
        for strip in waiting:
            strip.is_waiting = False
        self.place(waiting)
        for device in available:
            while self._send_next(device):
                pass
        if not any(device.queue for device in self._book.devices.values()):
            return
        for thief in available:
            while len(thief.sent) < self._settings.min_ahead and self._steal_for(thief):
                self._send_next(thief)

    def _send_next(self, device: DeviceState) -> bool:
        """Send the first strip of the queue if there is room; whether there may be another."""
        settings = self._settings
        if not device.queue or device.is_full or len(device.sent) >= settings.max_ahead:
            return False
        ahead_s = device.busy_until_s - self._book.now_s
        if len(device.sent) >= settings.min_ahead and ahead_s > settings.window_s:
            return False
        strip = device.queue[0]
        loading = self._load(device, strip)
        if loading is None and device.sent:
            return False
        self._book.dequeue(strip)
        if loading is None:
            self.give_up(device, strip)
        else:
            self._send(device, strip, loading)
        return True

    def _load(self, device: DeviceState, strip: Strip) -> Loading | None:
        work = self._book.work_of(strip)
        needs = [
            Need(operand.matrix, operand.region(strip.tile), operand.region(strip.home))
            for operand in work.inputs
        ]
        return device.ledger.load(
            strip.task_id, needs, _outputs(work, strip.tile), _workspace_bytes(work, strip.tile)
        )

    def _send(self, device: DeviceState, strip: Strip, loading: Loading) -> None:
        work, now_s = self._book.work_of(strip), self._book.now_s
        down_bytes = sum(fill.n_bytes for fill in loading.fills)
        up_bytes = result_bytes(work, strip.tile)
        flops = work.flops(strip.tile)
        busy_s, through_s = device.estimator.predict(
            work.dtype, down_bytes=down_bytes, up_bytes=up_bytes, flops=flops
        )
        begin_s = max(now_s, device.busy_until_s) if device.sent else now_s
        prediction = Prediction(
            sent_s=now_s,
            finish_s=begin_s + through_s,
            down_bytes=down_bytes,
            up_bytes=up_bytes,
            flops=flops,
            alone=not device.sent,
        )
        deadline_s = device.estimator.deadline_s(prediction, grace_s=self._settings.grace_s)
        device.busy_until_s = begin_s + busy_s
        device.sent[strip.task_id] = Sent(strip, work, prediction, deadline_s)
        strip.sent_to.add(device.device_id)
        self._book.drop(device, loading.dropped)
        self._book.commands.append(
            SendTask(
                device.device_id,
                strip.work_id,
                _task(strip, work, loading.inputs),
                loading.handles,
                loading.output_handles,
                loading.fills,
            )
        )

    def _steal_for(self, thief: DeviceState) -> bool:
        """Take the last strip of the device that is furthest behind, if that has it done sooner."""
        if thief.queue:
            return False
        victims = [d for d in self._book.devices.values() if d.queue and d is not thief]
        for victim in sorted(victims, key=self._backlog_s, reverse=True):
            strip = victim.queue[-1]
            work = self._book.work_of(strip)
            barred = strip.failed_on | strip.sent_to
            if strip.bound_to is not None or thief.device_id in barred or not thief.can_run(work):
                continue
            down_bytes = sum(
                thief.ledger.missing_bytes(operand.matrix, operand.region(strip.tile))
                for operand in work.inputs
            )
            _, through_s = self._times_s(thief, strip, down_bytes)
            if _WORTH_STEALING * (self._backlog_s(thief) + through_s) < self._backlog_s(victim):
                self._book.dequeue(strip)
                strip.home = strip.tile
                self._book.enqueue(thief, strip)
                return True
        return False

    def _backlog_s(self, device: DeviceState) -> float:
        """Seconds until a device should have done all that it has been given."""
        backlog_s = max(0.0, device.busy_until_s - self._book.now_s) if device.sent else 0.0
        return backlog_s + sum(self._times_s(device, strip, 0)[0] for strip in device.queue)

    def _times_s(self, device: DeviceState, strip: Strip, down_bytes: int) -> tuple[float, float]:
        """Seconds that a strip keeps a device busy, and seconds from end to end."""
        work = self._book.work_of(strip)
        return device.estimator.predict(
            work.dtype,
            down_bytes=down_bytes,
            up_bytes=result_bytes(work, strip.tile),
            flops=work.flops(strip.tile),
        )


def merged(tiles: Iterable[Region]) -> list[Region]:
    """The same cells in fewer rectangles, where neighbours share a whole side."""
    regions = sorted(tiles, key=lambda tile: (tile.col0, tile.col1, tile.row0))
    stacked: list[Region] = []
    for tile in regions:
        last = stacked[-1] if stacked else None
        if last and (last.col0, last.col1, last.row1) == (tile.col0, tile.col1, tile.row0):
            stacked[-1] = Region(last.row0, tile.row1, tile.col0, tile.col1)
        else:
            stacked.append(tile)
    stacked.sort(key=lambda tile: (tile.row0, tile.row1, tile.col0))
    joined: list[Region] = []
    for tile in stacked:
        last = joined[-1] if joined else None
        if last and (last.row0, last.row1, last.col1) == (tile.row0, tile.row1, tile.col0):
            joined[-1] = Region(tile.row0, tile.row1, last.col0, tile.col1)
        else:
            joined.append(tile)
    return joined


def _task(strip: Strip, work: Work, inputs: tuple[TaskInput, ...]) -> Task:
    return Task(
        task_id=strip.task_id,
        program=work.program.bind(strip.tile),
        inputs=inputs,
        outputs=_outputs(work, strip.tile),
        flops=work.flops(strip.tile),
        workspace_bytes=_workspace_bytes(work, strip.tile),
        priority=work.priority,
    )


def _outputs(work: Work, tile: Region) -> tuple[TaskOutput, ...]:
    return tuple(
        TaskOutput(result.block(tile), result.fate, work.is_partial(result))
        for result in work.results
    )


def _workspace_bytes(work: Work, tile: Region) -> int:
    return math.ceil(work.workspace_bytes_per_cell * tile.area)
