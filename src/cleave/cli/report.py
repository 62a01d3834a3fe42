"""What a run came to, in words and tables."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from rich.table import Table

from cleave import units

if TYPE_CHECKING:
    from cleave.server.status import FleetStats
    from cleave.train.loop import StepRecord


def loss_table(fleet: Sequence[StepRecord], alone: Sequence[StepRecord]) -> Table:
    """Losses of two equal runs side by side at five steps, and their largest difference.

    Args:
        fleet: Records of the run on devices.
        alone: Records of as many steps on the host.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_footer=True)
    worst = max(_difference(a, b) for a, b in zip(fleet, alone, strict=True))
    table.add_column("step", "median", justify="right")
    table.add_column("loss on the fleet", _median_seconds(fleet), justify="right")
    table.add_column("alone", _median_seconds(alone), justify="right")
    table.add_column("difference", f"worst {worst:.1e}", justify="right")
    for step in _five(len(fleet)):
        a, b = fleet[step], alone[step]
        table.add_row(str(step + 1), f"{a.loss:.5f}", f"{b.loss:.5f}", f"{_difference(a, b):.1e}")
    return table


def share_line(stats: FleetStats, host_flops: float) -> str:
    """What share of all operations in GEMMs and attention the devices did, and what it moved.

    Args:
        stats: Of the whole run.
        host_flops: Counted on the host outside the fleet.
    """
    on_host = host_flops + stats.host_flops
    total = stats.device_flops + on_host
    share = stats.device_flops / total if total else 0.0
    return (
        f"Devices did {share:.2%} of {units.format_flops(total)} in matrix products and attention, "
        f"the host {units.format_flops(on_host)}; {units.format_flops(stats.wasted_flops)} were "
        f"done in vain. {units.format_bytes(stats.bytes_down)} went down, "
        f"{units.format_bytes(stats.bytes_up)} came up."
    )


def _difference(a: StepRecord, b: StepRecord) -> float:
    return abs(a.loss - b.loss) / abs(b.loss)


def _median_seconds(records: Sequence[StepRecord]) -> str:
    return f"{units.format_seconds(median(record.seconds for record in records))}/step"


def _five(n_steps: int) -> list[int]:
    return sorted({round(i * (n_steps - 1) / 4) for i in range(5)})
