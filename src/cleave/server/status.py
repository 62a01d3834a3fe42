"""What a fleet says of itself: devices, totals, events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cleave.core.scheduling.snapshot import DeviceView

if TYPE_CHECKING:
    from cleave.server.connection import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """One device, present or gone.

    Attributes:
        device_id: Its number; a device that comes back has a new one.
        name: As its owner called it.
        state: ``"idle"``, ``"busy"``, ``"late"``, ``"resting"``, ``"paused"`` or ``"gone"``.
        reason: Why it is paused or gone, else empty.
        share: Part of all accepted device flops that it did, 0 to 1.
        bytes_down: Sent to it.
        bytes_up: Received from it.
        flops: Operations of its accepted results.
        wasted_flops: Operations of its results that nobody wanted any more.
        gflops_per_s: Those it did per second of computing, in 10^9.
        tasks: Tasks it finished.
        failures: Tasks that failed on it.
        open_tasks: Tasks it has now; of a device that is gone: that others had to do again.
        open_flops: Operations of those.
        memory_bytes: What its owner lends.
        held_bytes: Blocks that it holds.
    """

    device_id: int
    name: str
    state: str
    reason: str = ""
    share: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    flops: float = 0.0
    wasted_flops: float = 0.0
    gflops_per_s: float = 0.0
    tasks: int = 0
    failures: int = 0
    open_tasks: int = 0
    open_flops: float = 0.0
    memory_bytes: int = 0
    held_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStats:
    """Totals since the fleet was opened.

    Attributes:
        device_flops: Operations of accepted results of devices.
        host_flops: Operations of work that the host did because no device could.
        wasted_flops: Operations of device results that came too late or were cancelled.
        redone_tasks: Tasks that devices had when they went, done again by others.
        redone_flops: Operations of those, part of which had been done.
        device_tasks: Tasks that devices finished.
        host_tasks: Tasks that the host did in place of devices.
        bytes_down: Server to devices.
        bytes_up: Devices to server.
        planned_bytes: What the plans said must move, both ways: elements alone, no redone work.
        devices_joined: Devices that came in.
        devices_left: Devices that went.
        matrices: Matrices that the host holds for work now.
    """

    device_flops: float
    host_flops: float
    wasted_flops: float
    redone_tasks: int
    redone_flops: float
    device_tasks: int
    host_tasks: int
    bytes_down: int
    bytes_up: int
    planned_bytes: int
    devices_joined: int
    devices_left: int
    matrices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEvent:
    """Something that happened to a device.

    Attributes:
        kind: ``"joined"``, ``"left"``, ``"paused"``, ``"resumed"`` or ``"rejected"``.
        device_id: Which.
        name: As its owner called it.
        text: What to tell people.
        time_s: Monotonic clock.
    """

    kind: str
    device_id: int
    name: str
    text: str
    time_s: float


def device_status(
    view: DeviceView, connection: Connection, state: str, reason: str
) -> DeviceStatus:
    """The status of one device; its share is for who knows the others."""
    rate = view.flops_done / view.compute_s if view.compute_s > 0 else 0.0
    return DeviceStatus(
        device_id=view.device_id,
        name=view.name,
        state=state,
        reason=reason,
        bytes_down=connection.bytes_down,
        bytes_up=connection.bytes_up,
        flops=view.flops,
        wasted_flops=view.wasted_flops,
        gflops_per_s=rate / 1e9,
        tasks=view.tasks,
        failures=view.failures,
        open_tasks=view.open_tasks,
        open_flops=view.open_flops,
        memory_bytes=view.memory_bytes,
        held_bytes=view.held_bytes,
    )
