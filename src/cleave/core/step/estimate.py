"""Quick estimates of a rectangle's makespan over a thinned fleet, to choose what is worth cutting.

Up to 512 devices stand for all: every n-th in order of downlink, each counted n times.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from cleave.core.device import DeviceProfile
from cleave.core.fleet import Fleet
from cleave.core.matrix import DType
from cleave.core.planning.bound import area_within, least_cost, tile_area_limit
from cleave.core.planning.cost import FleetArrays, Floats
from cleave.core.step.tiled import Rectangle
from cleave.errors import PlanError

_MOST = 512
_PRECISION = 0.003  # relative, of a time


class Sample:
    """A fleet thinned to at most 512 devices; a site's line is shared evenly."""

    def __init__(self, fleet: Fleet, dtype: DType) -> None:
        able = [device for device in fleet.devices if dtype in device.flops_per_s]
        if not able:
            raise PlanError(
                f"no device may be given {dtype.value}", "use another type on the wire (--wire)"
            )
        crowd = Counter(device.site_id for device in able)
        lines = {site.site_id: site for site in fleet.sites}
        alone: list[DeviceProfile] = []
        for device in able:
            line = lines.get(device.site_id)
            if line is None:
                alone.append(device)
                continue
            n_devices = crowd[device.site_id]
            down, up = line.downlink_bytes_per_s / n_devices, line.uplink_bytes_per_s / n_devices
            alone.append(
                replace(
                    device,
                    site_id=0,
                    downlink_bytes_per_s=min(device.downlink_bytes_per_s, down),
                    uplink_bytes_per_s=min(device.uplink_bytes_per_s, up),
                )
            )
        alone.sort(key=lambda device: (device.downlink_bytes_per_s, device.device_id))
        step = -(-len(alone) // _MOST)
        picked = tuple(alone[step // 2 :: step])
        self.arrays = FleetArrays.of(Fleet(picked), dtype)
        self.weight = len(alone) / len(picked)
        self.n_devices = len(alone)
        self._server = fleet.server
        self._seconds: dict[Rectangle, float] = {}

    def seconds(self, rectangle: Rectangle) -> float:
        """About the makespan of a rectangle; infinite if it fits nowhere."""
        if rectangle not in self._seconds:
            self._seconds[rectangle] = self._estimated_s(rectangle)
        return self._seconds[rectangle]

    def _estimated_s(self, rectangle: Rectangle) -> float:
        form, (n_rows, n_cols) = rectangle.form, rectangle.sides
        area = float(n_rows * n_cols * rectangle.n_slabs) / self.weight
        if area == 0:
            return 0.0

        room = tile_area_limit(form, self.arrays, n_rows, n_cols) if rectangle.is_held else np.inf

        def areas(time_s: float) -> Floats:
            return np.minimum(area_within(form, self.arrays, n_rows, n_cols, time_s), room)

        def done(time_s: float) -> bool:
            return bool(areas(time_s).sum() >= area)

        low_s, high_s = 0.0, float(self.arrays.latency_s.max()) + 1e-3
        while not done(high_s):
            low_s, high_s = high_s, 4 * high_s
            if high_s > 1e12:
                return np.inf
        while high_s > low_s * (1 + _PRECISION):
            middle_s = (low_s + high_s) / 2
            low_s, high_s = (low_s, middle_s) if done(middle_s) else (middle_s, high_s)
        return max(high_s, self._server_s(rectangle, areas(high_s)))

    def _server_s(self, rectangle: Rectangle, areas: Floats) -> float:
        """How long the server takes to send and receive the bytes of tiles of these areas."""
        form, (n_rows, n_cols) = rectangle.form, rectangle.sides
        _, r1, r2, _ = form.memory
        memory = self.arrays.memory_bytes  # a tile is no higher or wider than it has room for
        highest = np.minimum(n_rows, memory / r1) if r1 else n_rows
        widest = np.minimum(n_cols, memory / r2) if r2 else n_cols
        down, up = (
            self.weight * float(least_cost(terms, areas, highest, widest).sum())
            for terms in (form.down, form.up)
        )
        server = self._server
        return max(down / server.egress_bytes_per_s, up / server.ingress_bytes_per_s)
