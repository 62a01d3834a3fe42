"""Why devices get nothing to do."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from cleave.core.fleet import Fleet
from cleave.core.matrix import DType
from cleave.core.planning.bound import area_within, behind_lines
from cleave.core.planning.cost import CostForm, FleetArrays, tiles_time_s
from cleave.errors import PlanError
from cleave.units import format_bytes, format_seconds

LEND_MORE = "lend more with --memory"


def too_small(needed_bytes: float, most_bytes: float) -> PlanError:
    """No device can hold the smallest tile."""
    return PlanError(
        f"the smallest tile needs {format_bytes(needed_bytes)}, "
        f"but no device has room for more than {format_bytes(most_bytes)}",
        LEND_MORE,
    )


@dataclass(frozen=True, slots=True)
class Reasons:
    """A cut that some devices have no part in.

    Attributes:
        form: What a tile costs.
        able: Those that can hold the smallest tile.
        sides: Rows and columns of the rectangle.
        smallest: Rows and columns of the smallest tile.
        finish_s: When the others are done.
    """

    form: CostForm
    able: FleetArrays
    sides: tuple[int, int]
    smallest: tuple[int, int]
    finish_s: float

    def left_out(self, fleet: Fleet, dtype: DType, used: Set[int]) -> tuple[tuple[int, str], ...]:
        """Devices that get nothing, in their order, and why.

        Args:
            fleet: All of them.
            dtype: What the work computes with.
            used: Those that get something.
        """
        able = self.able.device_id.tolist()
        why = self._why_idle() if len(used) < len(able) else [""] * len(able)
        reasons = dict(zip(able, why, strict=True))
        needed_bytes = self.form.memory_bytes(*self.smallest)
        found: list[tuple[int, str]] = []
        for device in fleet.devices:
            if device.device_id in used:
                continue
            if dtype not in device.flops_per_s:
                reason = f"may not be given {dtype.value}"
            elif device.memory_bytes < needed_bytes:
                reason = (
                    f"lends {format_bytes(device.memory_bytes)}, "
                    f"the smallest tile needs {format_bytes(needed_bytes)}"
                )
            else:
                reason = reasons[device.device_id]
            found.append((device.device_id, reason))
        return tuple(found)

    def _why_idle(self) -> list[str]:
        """Why each device that can hold a tile would get nothing, if it does."""
        able, finish_s = self.able, self.finish_s
        alone = area_within(self.form, able, *self.sides, finish_s)
        behind = behind_lines(self.form, able, self.sides, alone, finish_s)
        others = f"the others {format_seconds(finish_s)} for all"
        found: list[str] = []
        for latency_s, tile_s, crowded in zip(
            able.latency_s.tolist(),
            tiles_time_s(self.form, able, *self.smallest).tolist(),
            (behind < alone / 2).tolist(),
            strict=True,
        ):
            if latency_s >= finish_s:
                found.append(f"its round trip takes {format_seconds(latency_s)}, {others}")
            elif tile_s >= finish_s:
                found.append(f"its smallest tile takes {format_seconds(tile_s)}, {others}")
            elif crowded:
                found.append("the line of its site is full with what fewer devices do there")
            elif able.has_slow_server:
                found.append("would add to what passes the server, and not shorten anything")
            else:
                found.append(f"would not shorten the {format_seconds(finish_s)} of the others")
        return found
