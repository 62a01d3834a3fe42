"""When queued strips are sent, and when a device that has nothing to do takes from another."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import islice

from cleave.core.scheduling.book import Book
from cleave.core.scheduling.estimate import Prediction
from cleave.core.scheduling.events import SendTask
from cleave.core.scheduling.placing import Placer
from cleave.core.scheduling.residency import Loading
from cleave.core.scheduling.settings import SchedulerSettings
from cleave.core.scheduling.state import DeviceState, Sent, Strip
from cleave.core.scheduling.tasks import bound_task
from cleave.core.work import TaskOutput

_WORTH_STEALING = 1.25  # a stolen strip brings operands that its owner holds: gain enough for that
_CLEARLY = 0.1  # of what a device has to do: later by less than this is no news
_VICTIMS = 4  # devices that are asked for a strip at a time, those furthest behind first
_THIEVES = 4  # devices that are offered a strip at a time, in turn


class Dispatcher:
    """Sends strips from the devices' queues as there is room, and evens queues out."""

    def __init__(self, book: Book, placer: Placer, settings: SchedulerSettings) -> None:
        """Work on a book that others may change between calls."""
        self._book = book
        self._placer = placer
        self._settings = settings
        self._hungry: dict[int, DeviceState] = {}  # have room and nothing queued
        self._behind: list[tuple[float, int]] = []  # -(when free), device; those with queues

    def pump(self) -> None:
        """Give every device that may take more something to do."""
        book = self._book
        while book.is_unsettled or book.ready:
            if book.is_unsettled:
                self._placer.settle()
            ready, book.ready = book.ready, {}
            for device in ready.values():
                if device.is_available(book.now_s):
                    self._feed(device)

    def _feed(self, device: DeviceState) -> None:
        while self._send_next(device):
            pass
        if device.queue:
            self._hungry.pop(device.device_id, None)
            if self._falls_behind(device) and self._hungry:
                self._offer(device)
        else:
            while self._is_hungry(device) and self._steal_for(device):
                self._send_next(device)
            if self._is_hungry(device):
                self._hungry[device.device_id] = device

    # Sending -------------------------------------------------------------------------------------

    def _send_next(self, device: DeviceState) -> bool:
        """Send the first strip of the queue if there is room; whether there may be another."""
        settings = self._settings
        n_sent = len(device.sent)
        if not device.queue or device.is_full or n_sent >= settings.max_ahead:
            return False
        ahead_s = device.busy_until_s - self._book.now_s
        if n_sent >= settings.min_ahead and ahead_s > settings.window_s:
            return False
        strip = device.queue[0]
        outputs = strip.state.outputs(strip.tile)
        passing_bytes = strip.up_bytes + strip.workspace_bytes
        loading = device.ledger.load(strip.task_id, strip.needs, outputs, passing_bytes)
        if loading is None and n_sent:
            return False
        self._book.dequeue(strip)
        if loading is None:
            self._placer.give_up(device, strip)
        else:
            self._send(device, strip, loading, outputs)
        return True

    def _send(
        self,
        device: DeviceState,
        strip: Strip,
        loading: Loading,
        outputs: tuple[TaskOutput, ...],
    ) -> None:
        now_s = self._book.now_s
        busy_s, through_s = device.times_s(strip, loading.down_bytes)
        begin_s = max(now_s, device.busy_until_s) if device.sent else now_s
        finish_s = begin_s + through_s
        prediction = Prediction(
            sent_s=now_s,
            finish_s=finish_s,
            down_bytes=loading.down_bytes,
            up_bytes=strip.up_bytes,
            flops=strip.flops,
            alone=not device.sent,
        )
        device.busy_until_s = begin_s + busy_s
        deadline_s = device.estimator.deadline_s(now_s, finish_s, grace_s=self._settings.grace_s)
        self._book.send(device, strip, Sent(strip, prediction, deadline_s))
        self._book.drop(device, loading.dropped)
        self._book.commands.append(
            SendTask(
                device.device_id,
                strip.state.submitted.work_id,
                bound_task(strip, loading.inputs, outputs),
                loading.handles,
                loading.output_handles,
                loading.fills,
            )
        )

    # Stealing ------------------------------------------------------------------------------------

    def _is_hungry(self, device: DeviceState) -> bool:
        return (
            not device.queue
            and len(device.sent) < self._settings.min_ahead
            and not device.is_full
            and device.is_available(self._book.now_s)
        )

    def _falls_behind(self, device: DeviceState) -> bool:
        """Remember when a device with a queue is free; whether clearly later than before."""
        now_s = self._book.now_s
        free_s = device.free_s(now_s)
        known_s = device.behind_s
        if known_s < math.inf and free_s - known_s <= _CLEARLY * (free_s - now_s):
            return False
        device.behind_s = free_s
        heappush(self._behind, (-free_s, device.device_id))
        return known_s < math.inf

    def _offer(self, victim: DeviceState) -> None:
        """A device may have turned out slow: the next few that have nothing to do may help it."""
        for device_id in list(islice(self._hungry, _THIEVES)):
            thief = self._hungry.pop(device_id)
            if self._book.devices.get(device_id) is not thief or not self._is_hungry(thief):
                continue
            if victim.queue and self._steal(thief, victim):
                self._send_next(thief)
            if self._is_hungry(thief):
                self._hungry[device_id] = thief  # behind the others

    def _steal_for(self, thief: DeviceState) -> bool:
        """Take a strip of a device that is far behind the others; whether that was worth it."""
        asked: list[DeviceState] = []
        is_stolen = False
        while self._behind and len(asked) < _VICTIMS and not is_stolen:
            bound_s, device_id = self._behind[0]
            victim = self._book.devices.get(device_id)
            if victim is None or victim.behind_s != -bound_s:
                heappop(self._behind)
            elif not victim.queue or victim.queue[-1].bound_to is not None:
                heappop(self._behind)
                victim.behind_s = math.inf
            elif victim.free_s(self._book.now_s) < victim.behind_s:
                heappop(self._behind)
                victim.behind_s = math.inf
                self._falls_behind(victim)
            else:
                heappop(self._behind)
                victim.behind_s = math.inf
                asked.append(victim)
                is_stolen = self._steal(thief, victim)
        for victim in asked:
            if victim.queue:
                self._falls_behind(victim)
        return is_stolen

    def _steal(self, thief: DeviceState, victim: DeviceState) -> bool:
        """Take a device's last strip if that has it done clearly sooner; whether it was taken."""
        strip = victim.queue[-1]
        state = strip.state
        is_barred = thief.device_id in strip.failed_on or thief.device_id in strip.sent_to
        if strip.bound_to is not None or is_barred or not thief.can_run(state):
            return False
        now_s = self._book.now_s
        most_s = (victim.free_s(now_s) - now_s) / _WORTH_STEALING - (thief.free_s(now_s) - now_s)
        if thief.times_s(strip, 0)[1] >= most_s:
            return False
        needs = state.needs(strip.tile)
        down_bytes = thief.missing_bytes(needs)
        if thief.times_s(strip, down_bytes)[1] >= most_s:
            return False
        self._book.dequeue(strip)
        strip.needs, strip.down_bytes = needs, down_bytes
        self._book.enqueue(thief, strip)
        return True
