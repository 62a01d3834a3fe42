"""Who gets which strip: a device's queue, the host, or nobody until a device comes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heapreplace, nsmallest
from itertools import chain

from cleave.core.device import DeviceProfile
from cleave.core.matrix import Region
from cleave.core.planning.choice import Planner
from cleave.core.planning.cost import tile_cost
from cleave.core.planning.strips import strips
from cleave.core.scheduling.book import Book
from cleave.core.scheduling.events import FailWork, RunOnHost
from cleave.core.scheduling.residency import Ledger
from cleave.core.scheduling.settings import SchedulerSettings
from cleave.core.scheduling.state import DeviceState, Strip, WorkState
from cleave.core.scheduling.tasks import bound_task
from cleave.core.work import TaskInput
from cleave.errors import PlanError

_LOOKED_AT = 2  # devices that are looked at for each that is chosen
_MAX_CUTS = 1  # rectangles that are cut anew at a time; strips of others are handed on as they are

History = tuple[frozenset[int], int, bool]
"""What a strip hands on to those cut from its cells: failed_on, refusals, is_again."""


class Placer:
    """Places works and strips; what it queues is sent by the dispatcher."""

    def __init__(self, book: Book, planner: Planner, settings: SchedulerSettings) -> None:
        """Work on a book that others may change between calls."""
        self._book = book
        self._planner = planner
        self._settings = settings
        self._turn = 0  # where the next look for devices begins

    def candidates(self) -> list[tuple[DeviceProfile, Ledger]]:
        """What the planner needs of the devices that may be given tasks now."""
        now_s = self._book.now_s
        return [
            (device.estimator.planned, device.ledger)
            for device in self._book.devices.values()
            if device.is_available(now_s)
        ]

    def plan(self, state: WorkState) -> None:
        """Choose form and layout of a whole work and queue its strips."""
        event = state.submitted
        choice = self._planner.choose(event.forms, event.hints, self.candidates())
        if choice is None:
            strips_left = [self._book.new_strip(state, each) for each in state.work.rectangles]
            for strip in strips_left:
                if strip.task_id in self._book.strips:  # the first may have ended all the work
                    self._without_device(strip)
            return
        state.take(choice.form, choice.layout, choice.work)
        self._book.planned_bytes += choice.n_bytes
        for placement in choice.layout:
            device = self._book.devices[placement.device_id]
            self._enqueue_tile(state, placement.tile, device, _history(None))

    def place(self, lost: Sequence[Strip]) -> None:
        """Give strips that nobody has to others.

        What is most urgent is cut anew over up to `max_spread` devices, so that all are done with
        it at about the same time. What is to follow goes on as it is, to those that are free first.
        """
        groups: dict[tuple[WorkState, History], list[Strip]] = {}
        for strip in sorted(lost, key=lambda strip: strip.key):
            if strip.task_id not in self._book.strips:
                continue  # the one before it has ended all the work
            if strip.bound_to is not None:
                self._place_bound(strip)
            else:
                groups.setdefault((strip.state, _history(strip)), []).append(strip)
        n_cuts = 0
        for (state, history), group in groups.items():
            if state.work_id in self._book.works:
                n_cuts += self._place_group(state, history, group, may_cut=n_cuts < _MAX_CUTS)

    def bind(self, state: WorkState, tile: Region, device: DeviceState) -> None:
        """Queue a tile of pinned work on the device where its producer's tile lies."""
        strip = self._book.new_strip(state, tile)
        strip.bound_to = device.device_id
        strip.is_again = any(lost.contains(tile) for lost in state.lost)
        self._book.enqueue(device, strip)

    def give_up(self, device: DeviceState, strip: Strip) -> None:
        """This device cannot do this strip: somebody else must, if nobody is at it already."""
        strip.failed_on |= {device.device_id}
        if not strip.is_placed:
            self.place([strip])

    def settle(self) -> None:
        """Look for devices for what waits, and for what others are late with."""
        waiting = list(self._book.waiting.values())
        if waiting and any(d.is_available(self._book.now_s) for d in self._book.devices.values()):
            self._book.waiting.clear()
            self.place(waiting)
        self._overtake_late()

    def fail(self, state: WorkState, error: str) -> None:
        """Give a work up, and all that comes after it: nothing of them is left anywhere."""
        for strip in tuple(state.open.values()):
            self._book.close_strip(strip)
        if self._book.works.pop(state.work_id, None) is None:
            return
        if not state.is_complete:
            self._book.commands.append(FailWork(state.work_id, error))
        for work_id in state.followers:
            follower = self._book.works.get(work_id)
            if follower is not None and not follower.is_complete:
                self.fail(follower, f"{follower.work.name} comes after work that failed: {error}")

    # Groups of strips ----------------------------------------------------------------------------

    def _place_group(
        self, state: WorkState, history: History, group: Sequence[Strip], *, may_cut: bool
    ) -> int:
        """Place strips of one work and history; how many rectangles were cut anew for it."""
        failed_on = history[0]
        tiles = [strip.tile for strip in group]
        if not state.kept:  # those of a chain stay what they are: others are pinned to them
            tiles = merged(tiles, state.work.slab_cols)
        share = max(tile.area for tile in tiles) // self._settings.max_spread
        chosen = self._soonest(state, failed_on, share)
        is_hopeless = len(failed_on) >= self._settings.max_attempts
        if not chosen or (is_hopeless and self._host_may_do(state)):
            for strip in group:
                if strip.task_id in self._book.strips:  # the first may have ended all the work
                    self._without_device(strip)
            return 0
        for strip in group:
            self._book.close_strip(strip)
        if not may_cut or len(tiles) > _MAX_CUTS:
            self._hand_on(state, history, [strip.tile for strip in group])
            return 0
        profiles = [device.estimator.planned for device in chosen]
        for tile in tiles:
            for placement in self._planner.tiles(state.work, tile, profiles):
                device = self._book.devices[placement.device_id]
                self._enqueue_tile(state, placement.tile, device, history)
        return len(tiles)

    def _hand_on(self, state: WorkState, history: History, tiles: Sequence[Region]) -> None:
        """Give tiles as they are to those that have them done first, counting what they have."""
        largest = max(tile.area for tile in tiles)
        chosen = self._soonest(state, history[0], largest)
        through_s = self._through_s(state, largest)
        first = [(d.free_s(self._book.now_s) + through_s(d), d.device_id, d) for d in chosen]
        heapify(first)
        for tile in tiles:
            device = first[0][2]
            self._enqueue_tile(state, tile, device, history)
            done_s = device.free_s(self._book.now_s) + through_s(device)
            heapreplace(first, (done_s, device.device_id, device))

    def _place_bound(self, strip: Strip) -> None:
        state = strip.state
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
        self, state: WorkState, tile: Region, device: DeviceState, history: History
    ) -> None:
        parts = self._parts(state, tile, device)
        needs = state.needs(tile)
        down_bytes = device.missing_bytes(needs) // len(parts)
        for part in parts:
            strip = self._book.new_strip(state, part, needs if len(parts) > 1 else ())
            strip.down_bytes = down_bytes
            strip.failed_on, strip.refusals, strip.is_again = history
            self._book.enqueue(device, strip)

    def _parts(self, state: WorkState, tile: Region, device: DeviceState) -> tuple[Region, ...]:
        profile, target_s = device.estimator.planned, self._settings.strip_s
        try:
            return strips(tile, state.cost, profile, work=state.work, target_s=target_s)
        except PlanError:
            return (tile,)  # found not to fit when it is to be sent, and then placed elsewhere

    def _soonest(
        self, state: WorkState, excluded: Iterable[int], n_cells: int
    ) -> list[DeviceState]:
        """Up to `max_spread` devices that would be done soonest with about so many cells.

        Only some times as many are looked at, going round from call to call: a large fleet has
        enough that are free soon in any part of it.
        """
        now_s, settings = self._book.now_s, self._settings
        barred = frozenset(excluded)
        smallest_bytes = _smallest_bytes(state)
        devices = list(self._book.devices.values())
        self._turn %= max(1, len(devices))
        able: list[DeviceState] = []
        for device in chain(devices[self._turn :], devices[: self._turn]):
            self._turn += 1
            if (
                device.is_available(now_s)
                and device.device_id not in barred
                and device.can_run(state)
                and device.estimator.planned.memory_bytes >= smallest_bytes
            ):
                able.append(device)
                if len(able) == _LOOKED_AT * settings.max_spread:
                    break
        through_s = self._through_s(state, n_cells)
        return nsmallest(
            settings.max_spread, able, key=lambda d: (d.free_s(now_s) + through_s(d), d.device_id)
        )

    def _through_s(self, state: WorkState, n_cells: int) -> Callable[[DeviceState], float]:
        """How long about so many cells take on a device, from end to end."""
        side = max(1, math.isqrt(n_cells))
        down_bytes = int(tile_cost(state.cost.down, side, side))
        up_bytes = int(tile_cost(state.cost.up, side, side))
        flops = state.cost.flops * side * side

        def through_s(device: DeviceState) -> float:
            return device.estimator.predict(
                state.dtype, down_bytes=down_bytes, up_bytes=up_bytes, flops=flops
            )[1]

        return through_s

    # Strips that are late, and strips that no device can do --------------------------------------

    def _is_abandoned(self, strip: Strip) -> bool:
        """Whether all that have a strip are late with it."""
        devices = self._book.devices
        return (
            bool(strip.sent_to)
            and strip.queued_on is None
            and not strip.on_host
            and strip.bound_to is None
            and all(devices[holder].n_late for holder in strip.sent_to)
        )

    def _overtake_late(self) -> None:
        """Have strips that devices are late with done by others too: the first answer wins.

        Devices are looked for once per work, and given a strip each in turn.
        """
        chosen: dict[WorkState, deque[DeviceState]] = {}
        for strip in list(self._book.late.values()):
            if not self._is_abandoned(strip):
                del self._book.late[strip.task_id]
                continue
            state = strip.state
            if state not in chosen:
                chosen[state] = deque(self._soonest(state, (), strip.tile.area))
            barred = {*strip.failed_on, *strip.sent_to}
            device = next((d for d in chosen[state] if d.device_id not in barred), None)
            if device is not None:
                chosen[state].remove(device)
                chosen[state].append(device)
                strip.needs = state.needs(strip.tile)
                strip.down_bytes = device.missing_bytes(strip.needs)
                self._book.enqueue(device, strip)
            elif self._host_may_do(state):
                self._run_on_host(strip)
        self._book.is_unsettled = False

    def _without_device(self, strip: Strip) -> None:
        state = strip.state
        if self._host_may_do(state):
            self._run_on_host(strip)
            return
        present = [device for device in self._book.devices.values() if device.can_run(state)]
        smallest_bytes = _smallest_bytes(state)
        roomy = [d for d in present if d.estimator.planned.memory_bytes >= smallest_bytes]
        again = {d.device_id for d in roomy if self._may_try_again(d)}
        if not present or any(d.device_id not in strip.failed_on for d in roomy):
            self._book.wait(strip)
        elif again:
            strip.failed_on -= again
            self._book.wait(strip)
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

    def _host_may_do(self, state: WorkState) -> bool:
        return self._settings.host_steps_in and not state.kept

    def _run_on_host(self, strip: Strip) -> None:
        strip.on_host = True
        work, tile = strip.state.work, strip.tile
        inputs = [TaskInput(operand.block(tile), operand.region(tile)) for operand in work.inputs]
        task = bound_task(strip, tuple(inputs), strip.state.outputs(tile))
        self._book.commands.append(RunOnHost(task, strip.state.work_id))


def merged(tiles: Iterable[Region], slab_cols: int) -> list[Region]:
    """The same cells in fewer rectangles, where neighbours of a slab share a whole side."""
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
        is_beside = last and (last.row0, last.row1, last.col1) == (tile.row0, tile.row1, tile.col0)
        if last and is_beside and tile.col0 % slab_cols:
            joined[-1] = Region(tile.row0, tile.row1, last.col0, tile.col1)
        else:
            joined.append(tile)
    return joined


def _history(strip: Strip | None) -> History:
    return (
        (frozenset(), 0, False)
        if strip is None
        else (strip.failed_on, strip.refusals, strip.is_again)
    )


def _smallest_bytes(state: WorkState) -> int:
    """What the smallest tile of a work holds."""
    work = state.work
    rows, cols = min(work.row_quantum, work.n_rows), min(work.col_quantum, work.n_cols)
    return state.cost.memory_bytes(rows, cols)
