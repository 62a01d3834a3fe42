"""What is known of devices, as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from cleave import units

if TYPE_CHECKING:
    from cleave.server.status import DeviceStatus

_STYLES = {"gone": "dim", "late": "yellow", "paused": "yellow", "resting": "yellow"}


def device_table(devices: Sequence[DeviceStatus]) -> Table:
    """A row per device, in the order in which they came."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("device", "state"):
        table.add_column(heading, no_wrap=True, max_width=28)
    for heading in ("share", "tasks", "down", "up", "speed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for device in devices:
        table.add_row(
            Text(device.name),
            _state(device),
            f"{device.share:.0%}",
            str(device.tasks),
            units.format_bytes(device.bytes_down),
            units.format_bytes(device.bytes_up),
            units.format_flops_per_s(device.gflops_per_s * 1e9),
            style=_STYLES.get(device.state, ""),
        )
    return table


def device_line(devices: Sequence[DeviceStatus]) -> str:
    """The same in one line, for a log: ``"ann 40 % busy, bob 0 % gone"``."""
    return ", ".join(f"{device.name} {device.share:.0%} {device.state}" for device in devices)


def _state(device: DeviceStatus) -> Text:
    """The reason belongs to a pause; why a device is gone stands in the log."""
    return Text(f"paused: {device.reason}" if device.state == "paused" else device.state)
