"""What must hold of the scheduler's state after every event."""

from __future__ import annotations

from cleave.core.scheduling.snapshot import Snapshot, WorkView


def check(snapshot: Snapshot) -> None:
    """Raise AssertionError with what is wrong; return if all is well."""
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


def _free_queue(snapshot: Snapshot, queued: tuple[int, ...]) -> list[int]:
    pinned = {work.work_id for work in snapshot.works if work.is_pinned}
    return [
        strip.task_id
        for strip in snapshot.strips
        if strip.task_id in queued and strip.work_id not in pinned
    ]
