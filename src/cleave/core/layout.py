"""Who does which part of a work."""

from __future__ import annotations

import msgspec

from cleave.core.matrix import Region


class Placement(msgspec.Struct, frozen=True, gc=False):
    """A tile of work and the device that does it."""

    tile: Region
    device_id: int


Layout = tuple[Placement, ...]
