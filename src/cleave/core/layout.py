"""Who does which part of a work."""

from __future__ import annotations

from dataclasses import dataclass

from cleave.core.matrix import Region


@dataclass(frozen=True, slots=True)
class Placement:
    """A tile of work and the device that does it."""

    tile: Region
    device_id: int


Layout = tuple[Placement, ...]
