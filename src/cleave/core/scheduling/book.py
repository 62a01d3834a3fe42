"""The scheduler's book: all devices, works and open strips, kept consistent.

Nothing here looks at all devices or all strips: an event costs what it changes. What needs looking
for is kept at hand instead: devices that may take more, strips that wait, the next deadlines.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from heapq import heappop, heappush

from cleave.core.matrix import Region
from cleave.core.planning.cost import tile_cost
from cleave.core.scheduling.events import (
    CancelTask,
    CloseDevice,
    Command,
    DropBlocks,
    WorkSubmitted,
)
from cleave.core.scheduling.residency import Need
from cleave.core.scheduling.state import DeviceState, Key, Sent, Strip, WorkState


class Book:
    """All devices, works and open strips, and the commands that a change of them asks for.

    Attributes:
        devices: By id, in order of joining.
        works: By id, in order of submission.
        strips: Open strips by task id.
        commands: What is to be done about the event at hand.
        now_s: Its time.
        planned_bytes: What all plans so far said must move.
        ready: Devices that may have room for more since they were last looked at.
        waiting: Open strips that wait for a device to come.
        late: Open strips that all who have them are late with, unless somebody has overtaken.
        is_unsettled: Whether those two may find a device now that they did not before.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self.devices: dict[int, DeviceState] = {}
        self.works: dict[int, WorkState] = {}
        self.strips: dict[int, Strip] = {}
        self.commands: list[Command] = []
        self.now_s = 0.0
        self.planned_bytes = 0
        self.ready: dict[int, DeviceState] = {}
        self.waiting: dict[int, Strip] = {}
        self.late: dict[int, Strip] = {}
        self.is_unsettled = False
        self._alarms: list[tuple[float, int]] = []  # when a device may be late; its own one counts
        self._rests: list[tuple[float, int]] = []
        self._next_task_id = 1
        self._n_works = 0

    def add(self, device: DeviceState) -> None:
        """A device has come."""
        self.devices[device.device_id] = device
        self.revive(device)

    def revive(self, device: DeviceState) -> None:
        """A device may be given tasks that it could not be given before."""
        self.ready[device.device_id] = device
        self.is_unsettled = True

    def new_work(self, event: WorkSubmitted) -> WorkState:
        """A work of which nothing is done yet."""
        self._n_works += 1
        state = self.works[event.work_id] = WorkState(event, self._n_works)
        return state

    # Strips --------------------------------------------------------------------------------------

    def new_strip(self, state: WorkState, tile: Region, home: Sequence[Need] = ()) -> Strip:
        """A fresh open strip that nobody has yet, part of a tile if that one's needs are given."""
        task_id = self._next_task_id
        self._next_task_id += 1
        key = (state.work.priority, state.number, task_id)
        n_rows, n_cols = tile.n_rows, tile.n_cols
        flops = state.work.flops(tile)
        up_bytes = int(tile_cost(state.cost.up, n_rows, n_cols))
        per_cell = state.work.workspace_bytes_per_cell
        workspace_bytes = math.ceil(per_cell * n_rows * n_cols)
        needs = state.needs(tile, home)
        strip = Strip(task_id, state, tile, needs, key, flops, up_bytes, workspace_bytes)
        self.strips[task_id] = strip
        state.open[task_id] = strip
        return strip

    def close_strip(self, strip: Strip) -> None:
        """Nobody shall work on it any more: taken out of queues, cancelled where it was sent."""
        for device_id in strip.sent_to:
            self.cancel(self.devices[device_id], strip)
        if strip.queued_on is not None:
            self.dequeue(strip)
        task_id = strip.task_id
        del self.strips[task_id]
        strip.state.open.pop(task_id, None)
        self.waiting.pop(task_id, None)
        self.late.pop(task_id, None)

    def wait(self, strip: Strip) -> None:
        """A strip waits until a device comes that can do it."""
        self.waiting[strip.task_id] = strip

    def enqueue(self, device: DeviceState, strip: Strip) -> None:
        """Put a strip in its place in a device's queue."""
        strip.queued_on = device.device_id
        strip.queued_s = device.times_s(strip, strip.down_bytes)[0]
        device.queued_s += strip.queued_s
        queue = device.queue
        if not queue or queue[-1].key < strip.key:
            queue.append(strip)
        else:
            insort(queue, strip, key=_key)
        self.ready[device.device_id] = device

    def dequeue(self, strip: Strip) -> None:
        """Take a strip out of the queue it is in, if it is in one."""
        if strip.queued_on is not None:
            device = self.devices[strip.queued_on]
            device.queue.remove(strip)
            device.queued_s = device.queued_s - strip.queued_s if device.queue else 0.0
            strip.queued_on = None

    # Tasks that devices have ---------------------------------------------------------------------

    def send(self, device: DeviceState, strip: Strip, sent: Sent) -> None:
        """A device has a task now."""
        device.sent[strip.task_id] = sent
        strip.sent_to += (device.device_id,)
        if sent.deadline_s < device.alarm_s:
            device.alarm_s = sent.deadline_s
            heappush(self._alarms, (sent.deadline_s, device.device_id))

    def cancel(self, device: DeviceState, strip: Strip) -> None:
        """Tell a device to drop a task; it has the task until it answers."""
        device.sent[strip.task_id].is_cancelled = True
        self._take_from(strip, device)
        self.commands.append(CancelTask(device.device_id, strip.task_id))

    def end(self, device: DeviceState, task_id: int, *, refused: bool = False) -> Sent | None:
        """A device has answered for a task: it has it no longer. None if it never had it."""
        sent = device.sent.pop(task_id, None)
        if sent is None:
            return None
        if not sent.is_cancelled:
            self._take_from(sent.strip, device)
        if sent.is_late:
            device.n_late -= 1
            self.is_unsettled = True
        device.is_full = False
        self.ready[device.device_id] = device
        ledger = device.ledger
        self.drop(device, ledger.abandon(task_id) if refused else ledger.unload(task_id))
        return sent

    def drop(self, device: DeviceState, handles: tuple[int, ...]) -> None:
        """Tell a device to forget blocks, if there are any."""
        if handles:
            self.commands.append(DropBlocks(device.device_id, handles))

    def _take_from(self, strip: Strip, device: DeviceState) -> None:
        if len(strip.sent_to) == 1:
            strip.sent_to = ()
        else:
            strip.sent_to = tuple([each for each in strip.sent_to if each != device.device_id])
            self._look_again(strip)

    def _look_again(self, strip: Strip) -> None:
        """Who had overtaken a late device with this strip may have it no longer."""
        if strip.sent_to:
            self.late[strip.task_id] = strip
            self.is_unsettled = True

    # Devices -------------------------------------------------------------------------------------

    def take_queue(self, device: DeviceState) -> list[Strip]:
        """Empty a device's queue (bound strips stay); the strips that nobody has now."""
        queued = [strip for strip in device.queue if strip.bound_to is None]
        device.queue = [strip for strip in device.queue if strip.bound_to is not None]
        device.queued_s = sum(strip.queued_s for strip in device.queue)
        for strip in queued:
            strip.queued_on = None
            self._look_again(strip)
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
            self._take_from(strip, device)
        for strip in device.queue:
            strip.queued_on = None
            self._look_again(strip)
        lost += [strip for strip in device.queue if strip not in lost]
        del self.devices[device.device_id]
        self.ready.pop(device.device_id, None)
        self.is_unsettled = True
        return [strip for strip in lost if not strip.is_placed]

    def part_with(self, device: DeviceState, reason: str) -> None:
        """Give a device nothing more, and have it closed."""
        device.is_closing = True
        self.commands.append(CloseDevice(device.device_id, reason))

    def rest(self, device: DeviceState, rest_s: float) -> None:
        """Give a device nothing for a while."""
        device.resting_until_s = self.now_s + rest_s
        heappush(self._rests, (device.resting_until_s, device.device_id))

    # Time ----------------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """An event is at hand; devices whose rest is over by now may be given tasks again."""
        self.now_s = now_s
        self.commands = []
        while self._rests and self._rests[0][0] <= self.now_s:
            device = self.devices.get(heappop(self._rests)[1])
            if device is not None:
                self.revive(device)

    def next_deadline_s(self) -> float | None:
        """When to look whether a task is late or a rest over, or None: in time, or too early."""
        alarm_s = self._alarms[0][0] if self._alarms else math.inf
        if self._rests and self._rests[0][0] < alarm_s:
            return self._rests[0][0]
        return alarm_s if alarm_s < math.inf else None

    def overdue(self) -> list[DeviceState]:
        """Devices that have not answered in time for a task, which are late from now on."""
        found: list[DeviceState] = []
        while self._alarms and self._alarms[0][0] <= self.now_s:
            alarm_s, device_id = heappop(self._alarms)
            device = self.devices.get(device_id)
            if device is None or device.alarm_s != alarm_s:
                continue  # gone, or woken earlier
            device.alarm_s = math.inf
            was_late = device.n_late
            for sent in device.sent.values():
                if sent.is_late:
                    continue
                if sent.deadline_s > self.now_s:
                    device.alarm_s = min(device.alarm_s, sent.deadline_s)
                    continue
                sent.is_late = True
                device.n_late += 1
                if not sent.is_cancelled:
                    self.late[sent.strip.task_id] = sent.strip
            if device.alarm_s < math.inf:
                heappush(self._alarms, (device.alarm_s, device_id))
            if device.n_late > was_late:
                self.is_unsettled = True
                found.append(device)
        return found


def _key(strip: Strip) -> Key:
    return strip.key
