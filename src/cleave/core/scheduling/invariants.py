"""What must hold of the scheduler's state after every event."""

from __future__ import annotations

import math

from cleave.core.scheduling.book import Book
from cleave.core.scheduling.snapshot import Snapshot, WorkView, take_snapshot


def check_book(book: Book) -> None:
    """Raise AssertionError with what is wrong; return if all is well."""
    check(take_snapshot(book))
    _counts_are_right(book)


def check(snapshot: Snapshot) -> None:
    """As `check_book`, of what a picture shows."""
    _everything_is_somewhere(snapshot)
    _both_sides_agree(snapshot)
    for work in snapshot.works:
        _cells_are_covered_once(snapshot, work)
    for device in snapshot.devices:
        assert device.used_bytes <= device.memory_bytes, (
            f"device {device.device_id} uses {device.used_bytes} of {device.memory_bytes} bytes"
        )
        if device.state in {"paused", "late", "resting"}:
            assert not _free_queue(snapshot, device.queued), (
                f"device {device.device_id} is {device.state} but has work in its queue"
            )


def _everything_is_somewhere(snapshot: Snapshot) -> None:
    for strip in snapshot.strips:
        placed = strip.queued_on is not None or bool(strip.sent_to) or strip.on_host
        assert placed != strip.is_waiting, f"strip {strip.task_id} is nowhere, or in two places"


def _both_sides_agree(snapshot: Snapshot) -> None:
    devices = {device.device_id: device for device in snapshot.devices}
    strips = {strip.task_id: strip for strip in snapshot.strips}
    for strip in snapshot.strips:
        if strip.queued_on is not None:
            assert strip.task_id in devices[strip.queued_on].queued, strip
        for device_id in strip.sent_to:
            assert strip.task_id in devices[device_id].sent, strip
    for device in snapshot.devices:
        for task_id in device.queued:
            assert strips[task_id].queued_on == device.device_id, (device, task_id)
        assert len(set(device.queued)) == len(device.queued), device


def _cells_are_covered_once(snapshot: Snapshot, work: WorkView) -> None:
    if not work.is_planned or work.is_pinned:
        return  # pinned work exists where its producer is done
    open_tiles = [strip.tile for strip in snapshot.strips if strip.work_id == work.work_id]
    tiles = [*open_tiles, *work.done]
    area = sum(tile.area for tile in tiles)
    assert area == work.whole.area, f"work {work.work_id} covers {area} of {work.whole.area} cells"
    for i, one in enumerate(tiles):
        for other in tiles[i + 1 :]:
            apart = (
                one.row1 <= other.row0
                or other.row1 <= one.row0
                or one.col1 <= other.col0
                or other.col1 <= one.col0
            )
            assert apart, f"work {work.work_id} has {one} and {other} at once"


def _counts_are_right(book: Book) -> None:
    """What is counted or kept at hand, so that nobody has to look for it, is as if it was not."""
    for device in book.devices.values():
        assert device.n_late == sum(sent.is_late for sent in device.sent.values()), device
        queued_s = sum(strip.queued_s for strip in device.queue)
        assert math.isclose(device.queued_s, queued_s, rel_tol=1e-6, abs_tol=1e-9), device
        assert device.ledger.used_bytes <= device.ledger.budget_bytes, device
        due_s = [sent.deadline_s for sent in device.sent.values() if not sent.is_late]
        assert device.alarm_s <= min(due_s, default=math.inf), device
    for state in book.works.values():
        missing = state.work.whole.area - sum(tile.area for tile in state.done)
        assert state.n_missing == missing, (state.work_id, state.n_missing, missing)
        assert set(state.open) <= set(book.strips), state.work_id
    for strip in book.strips.values():
        assert book.works.get(strip.state.work_id) is strip.state, strip
        assert strip.state.open[strip.task_id] is strip, strip
    for task_id in (*book.waiting, *book.late):
        assert task_id in book.strips, task_id


def _free_queue(snapshot: Snapshot, queued: tuple[int, ...]) -> list[int]:
    pinned = {work.work_id for work in snapshot.works if work.is_pinned}
    return [
        strip.task_id
        for strip in snapshot.strips
        if strip.task_id in queued and strip.work_id not in pinned
    ]
