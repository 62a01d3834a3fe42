"""A frozen picture of the scheduler's state: for people, for tests, for the invariants."""

from __future__ import annotations

from dataclasses import dataclass

from cleave.core.matrix import Region
from cleave.core.scheduling.book import Book
from cleave.core.scheduling.state import DeviceState, Strip


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """One device as it stands.

    Attributes:
        device_id: Its number.
        name: For people.
        state: ``"idle"``, ``"busy"``, ``"late"``, ``"resting"`` or ``"paused"``.
        reason: Why it is paused, else empty.
        queued: Task ids in its queue.
        sent: Task ids it has, cancelled ones included.
        open_tasks: Tasks it has whose results are wanted.
        open_flops: Operations of those.
        held_bytes: Bytes of the blocks it holds.
        used_bytes: Those and what its tasks in flight need.
        memory_bytes: What its owner lends.
        tasks: Tasks it has finished.
        flops: Operations of accepted results.
        wasted_flops: Operations of results that came too late or were dropped.
        flops_done: Operations of all tasks that it finished.
        compute_s: Seconds it says it has computed.
        failures: Tasks that failed.
    """

    device_id: int
    name: str
    state: str
    reason: str
    queued: tuple[int, ...]
    sent: tuple[int, ...]
    open_tasks: int
    open_flops: float
    held_bytes: int
    used_bytes: int
    memory_bytes: int
    tasks: int
    flops: float
    wasted_flops: float
    flops_done: float
    compute_s: float
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StripView:
    """One open strip as it stands."""

    task_id: int
    work_id: int
    tile: Region
    queued_on: int | None
    sent_to: frozenset[int]
    on_host: bool
    is_waiting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkView:
    """One work that is not forgotten yet."""

    work_id: int
    name: str
    whole: Region
    is_planned: bool
    is_complete: bool
    is_pinned: bool
    open: tuple[int, ...]
    done: tuple[Region, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All of it at one moment.

    Attributes:
        now_s: Which moment.
        planned_bytes: What all plans so far said must move, both ways.
        devices: In order of joining.
        works: In order of submission.
        strips: Those still open.
    """

    now_s: float
    planned_bytes: int
    devices: tuple[DeviceView, ...]
    works: tuple[WorkView, ...]
    strips: tuple[StripView, ...]


def take_snapshot(book: Book) -> Snapshot:
    """The picture of a book."""
    return Snapshot(
        now_s=book.now_s,
        planned_bytes=book.planned_bytes,
        devices=tuple(device_view(device, book.now_s) for device in book.devices.values()),
        works=tuple(
            WorkView(
                work_id=state.work_id,
                name=state.work.name,
                whole=state.work.whole,
                is_planned=state.is_planned,
                is_complete=state.is_complete,
                is_pinned=state.submitted.pinned,
                open=tuple(state.open),
                done=tuple(state.done),
            )
            for state in book.works.values()
        ),
        strips=tuple(
            _strip_view(strip, strip.task_id in book.waiting) for strip in book.strips.values()
        ),
    )


def device_view(device: DeviceState, now_s: float) -> DeviceView:
    """How a device stands."""
    wanted = [sent for sent in device.sent.values() if not sent.is_cancelled]
    return DeviceView(
        device_id=device.device_id,
        name=device.estimator.profile.name,
        state=_state(device, now_s),
        reason=device.paused or "",
        queued=tuple(strip.task_id for strip in device.queue),
        sent=tuple(device.sent),
        open_tasks=len(wanted),
        open_flops=sum(sent.prediction.flops for sent in wanted),
        held_bytes=device.ledger.held_bytes,
        used_bytes=device.ledger.used_bytes,
        memory_bytes=device.estimator.profile.memory_bytes,
        tasks=device.tally.tasks,
        flops=device.tally.flops,
        wasted_flops=device.tally.wasted_flops,
        flops_done=device.tally.flops_done,
        compute_s=device.tally.compute_s,
        failures=device.tally.failures,
    )


def _state(device: DeviceState, now_s: float) -> str:
    if device.paused is not None:
        return "paused"
    if device.n_late:
        return "late"
    if device.resting_until_s > now_s:
        return "resting"
    return "busy" if device.sent else "idle"


def _strip_view(strip: Strip, is_waiting: bool) -> StripView:
    return StripView(
        task_id=strip.task_id,
        work_id=strip.state.work_id,
        tile=strip.tile,
        queued_on=strip.queued_on,
        sent_to=frozenset(strip.sent_to),
        on_host=strip.on_host,
        is_waiting=is_waiting,
    )
