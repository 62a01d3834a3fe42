"""What a tile costs a device, in bytes, flops and seconds.

One form holds for every kind of work: a tile of m rows and n columns costs
``c0 + c1 * m + c2 * n + c3 * m * n`` of each of downlink, uplink and memory, and ``f * m * n``
flops. Sending, computing and returning overlap, so the time of a tile is the round trip plus the
longest of the three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cleave.core.device import DeviceProfile
from cleave.core.fleet import Fleet
from cleave.core.matrix import DType, Region
from cleave.core.work import Along, Fate, Operand, Work
from cleave.errors import PlanError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Terms = tuple[float, float, float, float]
Rates = tuple[float, float, float, float, float]
"""Downlink and uplink in bytes/s, flops/s, round trip in seconds, memory in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostForm:
    """Cost of a tile by its sides: terms of 1, rows, columns and rows x columns.

    Attributes:
        down: Bytes from server to device.
        up: Bytes from device to server.
        flops: Floating-point operations of one cell.
        memory: Bytes that a task on the tile holds at once: inputs, outputs and workspace.
    """

    down: Terms
    up: Terms
    flops: float
    memory: Terms

    @classmethod
    def of(cls, work: Work) -> CostForm:
        """The form of a work whose operands are all still to be sent; of slabs, of a full one.

        Raises:
            PlanError: If both dimensions of an operand follow the same axis.
        """
        inputs = [_terms(operand) for operand in work.inputs]
        results = [_terms(result) for result in work.results]
        returned = [
            terms
            for terms, result in zip(results, work.results, strict=True)
            if result.fate is Fate.RETURNED
        ]
        workspace = (0.0, 0.0, 0.0, float(work.workspace_bytes_per_cell))
        return cls(
            down=_total(inputs),
            up=_total(returned),
            flops=float(work.flops_per_cell),
            memory=_total([*inputs, *results, workspace]),
        )

    @property
    def transposed(self) -> CostForm:
        """The form with rows and columns exchanged."""
        return CostForm(
            down=_transposed(self.down),
            up=_transposed(self.up),
            flops=self.flops,
            memory=_transposed(self.memory),
        )

    def in_units(self, rows: int, cols: int) -> CostForm:
        """The form with sides counted in units of ``rows`` and ``cols``."""
        return CostForm(
            down=_in_units(self.down, rows, cols),
            up=_in_units(self.up, rows, cols),
            flops=self.flops * rows * cols,
            memory=_in_units(self.memory, rows, cols),
        )

    def memory_bytes(self, n_rows: int, n_cols: int) -> int:
        """Bytes that a task on a tile of these sides holds at once."""
        return math.ceil(tile_cost(self.memory, n_rows, n_cols))


def tile_cost(terms: Terms, n_rows: int, n_cols: int) -> float:
    """One cost of a tile of these sides, in the unit of its terms."""
    c0, c1, c2, c3 = terms
    return c0 + c1 * n_rows + c2 * n_cols + c3 * n_rows * n_cols


def tiles_cost(terms: Terms, n_rows: Ints | int, n_cols: Ints | int) -> Floats:
    """As `tile_cost` of many tiles."""
    c0, c1, c2, c3 = terms
    return np.asarray(c0 + c1 * n_rows + c2 * n_cols + c3 * n_rows * n_cols, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds that the three parts of a tile's work take, each for itself."""

    down_s: float
    compute_s: float
    up_s: float

    @property
    def overlapped_s(self) -> float:
        """All three at once: the longest."""
        return max(self.down_s, self.compute_s, self.up_s)

    @property
    def single_task_s(self) -> float:
        """All three at once for one product whose two operands are both on the way.

        Nothing can return until part of both is there: of a share x of both operands follows x^2 of
        the result. That costs up to a quarter more than `overlapped_s`.
        """
        up_s = self.up_s
        if self.down_s < 2 * up_s:
            up_s += self.down_s**2 / (4 * up_s)
        return max(self.down_s, self.compute_s, up_s)


def phases(form: CostForm, tile: Region, device: DeviceProfile, dtype: DType) -> Phases:
    """Seconds of sending, computing and returning ``tile``, without the round trip."""
    m, n = tile.n_rows, tile.n_cols
    return Phases(
        tile_cost(form.down, m, n) / device.downlink_bytes_per_s,
        form.flops * m * n / device.flops_per_s[dtype],
        tile_cost(form.up, m, n) / device.uplink_bytes_per_s,
    )


def tile_time_s(form: CostForm, tile: Region, device: DeviceProfile, dtype: DType) -> float:
    """Seconds from the first byte sent to the last byte received, with overlap."""
    return device.latency_s + phases(form, tile, device, dtype).overlapped_s


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FleetArrays:
    """A fleet as arrays, for one element type: its devices that may be given it, in their order.

    Attributes:
        device_id: ``(devices,)``, as all of these up to ``site``.
        downlink_bytes_per_s: Of the device's own link.
        uplink_bytes_per_s: Likewise.
        flops_per_s: For the element type.
        latency_s: Round trip.
        memory_bytes: What it lends.
        site: Index of the line that it shares with others, -1 for none.
        site_downlink_bytes_per_s: ``(sites,)``.
        site_uplink_bytes_per_s: ``(sites,)``.
        egress_bytes_per_s: What the server can send to all of them together.
        ingress_bytes_per_s: What the server can receive from all of them together.
    """

    device_id: Ints
    downlink_bytes_per_s: Floats
    uplink_bytes_per_s: Floats
    flops_per_s: Floats
    latency_s: Floats
    memory_bytes: Floats
    site: Ints
    site_downlink_bytes_per_s: Floats
    site_uplink_bytes_per_s: Floats
    egress_bytes_per_s: float = math.inf
    ingress_bytes_per_s: float = math.inf

    @classmethod
    def of(cls, fleet: Fleet, dtype: DType) -> FleetArrays:
        """The devices of ``fleet`` that may be given ``dtype``."""
        place = {site.site_id: index for index, site in enumerate(fleet.sites)}
        rows = [
            (
                device.device_id,
                device.downlink_bytes_per_s,
                device.uplink_bytes_per_s,
                device.flops_per_s[dtype],
                device.latency_s,
                device.memory_bytes,
                place.get(device.site_id, -1),
            )
            for device in fleet.devices
            if dtype in device.flops_per_s
        ]
        ids, down, up, flops, latency, memory, site = zip(*rows, strict=True) if rows else [()] * 7
        return cls(
            device_id=np.array(ids, dtype=np.int64),
            downlink_bytes_per_s=np.array(down, dtype=np.float64),
            uplink_bytes_per_s=np.array(up, dtype=np.float64),
            flops_per_s=np.array(flops, dtype=np.float64),
            latency_s=np.array(latency, dtype=np.float64),
            memory_bytes=np.array(memory, dtype=np.float64),
            site=np.array(site, dtype=np.int64),
            site_downlink_bytes_per_s=np.array(
                [each.downlink_bytes_per_s for each in fleet.sites], dtype=np.float64
            ),
            site_uplink_bytes_per_s=np.array(
                [each.uplink_bytes_per_s for each in fleet.sites], dtype=np.float64
            ),
            egress_bytes_per_s=fleet.server.egress_bytes_per_s,
            ingress_bytes_per_s=fleet.server.ingress_bytes_per_s,
        )

    def __len__(self) -> int:
        return len(self.device_id)

    @property
    def shares_lines(self) -> bool:
        """Whether more than the devices' own links limits it: a site or the server."""
        return len(self.site_downlink_bytes_per_s) > 0 or self.has_slow_server

    @property
    def has_slow_server(self) -> bool:
        """Whether there is a limit to what the server passes."""
        return min(self.egress_bytes_per_s, self.ingress_bytes_per_s) < math.inf

    @property
    def first_s_by_site(self) -> Floats:
        """The shortest round trip of each site's devices, ``(sites,)``."""
        first_s = np.full(len(self.site_downlink_bytes_per_s) + 1, np.inf)
        np.minimum.at(first_s, self.site, self.latency_s)  # those without a site are the last
        return first_s[:-1]

    def rates(self) -> list[Rates]:
        """What each device has to itself as plain numbers, for loops over few devices."""
        columns = (
            self.downlink_bytes_per_s,
            self.uplink_bytes_per_s,
            self.flops_per_s,
            self.latency_s,
            self.memory_bytes,
        )
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def take(self, indices: Ints, *, shares: Floats | float = 1.0) -> FleetArrays:
        """The devices at ``indices``, each with the given share of its own rates."""
        return replace(
            self,
            device_id=self.device_id[indices],
            downlink_bytes_per_s=self.downlink_bytes_per_s[indices] * shares,
            uplink_bytes_per_s=self.uplink_bytes_per_s[indices] * shares,
            flops_per_s=self.flops_per_s[indices] * shares,
            latency_s=self.latency_s[indices],
            memory_bytes=self.memory_bytes[indices],
            site=self.site[indices],
        )

    def with_own_lines(
        self, downlink_bytes_per_s: Floats, uplink_bytes_per_s: Floats
    ) -> FleetArrays:
        """The same devices with these rates, each to itself: no site, no limit of the server."""
        return replace(
            self,
            downlink_bytes_per_s=downlink_bytes_per_s,
            uplink_bytes_per_s=uplink_bytes_per_s,
            site=np.full(len(self), -1),
            site_downlink_bytes_per_s=np.zeros(0),
            site_uplink_bytes_per_s=np.zeros(0),
            egress_bytes_per_s=math.inf,
            ingress_bytes_per_s=math.inf,
        )


def tiles_time_s(
    form: CostForm, fleet: FleetArrays, n_rows: Ints | int, n_cols: Ints | int
) -> Floats:
    """As `tile_time_s` for a tile of these sides on each device, ``(devices,)``."""
    down_s = tiles_cost(form.down, n_rows, n_cols) / fleet.downlink_bytes_per_s
    up_s = tiles_cost(form.up, n_rows, n_cols) / fleet.uplink_bytes_per_s
    compute_s = tiles_cost((0.0, 0.0, 0.0, form.flops), n_rows, n_cols) / fleet.flops_per_s
    return np.asarray(fleet.latency_s + np.maximum(np.maximum(down_s, up_s), compute_s))


def makespan_s(form: CostForm, fleet: FleetArrays, cells: Ints) -> float:
    """When all tiles are back, if each device does its own one after the other.

    Args:
        form: What a tile costs by its sides.
        fleet: Who does them.
        cells: Index of the device, row0, row1, col0, col1 of each tile, ``(tiles, 5)``.
    """
    index = cells[:, 0]
    m, n = cells[:, 2] - cells[:, 1], cells[:, 4] - cells[:, 3]

    def total(terms: Terms) -> Floats:
        return np.bincount(index, tiles_cost(terms, m, n), len(fleet)).astype(np.float64)

    return finish_s(fleet, total(form.down), total(form.up), total((0.0, 0.0, 0.0, form.flops)))


def line_s(n_bytes: Floats, own: Floats, site: Ints, lines: Floats) -> Floats:
    """Seconds that each device's link, or the line that it shares if that is longer, is busy.

    Args:
        n_bytes: Of each device, one way, ``(devices,)``.
        own: Bytes per second of its link.
        site: Index of its line, -1 for none.
        lines: Bytes per second of each line, ``(sites,)``.
    """
    behind = np.bincount(site + 1, weights=n_bytes, minlength=len(lines) + 1)
    shared_s = behind / np.concatenate(([np.inf], lines))
    return np.maximum(n_bytes / own, shared_s[site + 1])


def finish_s(fleet: FleetArrays, down: Floats, up: Floats, flops: Floats) -> float:
    """When everything is back, if each device sends, computes and returns so much at once.

    A device needs its round trip and the longest of the three. The line of a site and the server
    need the time for all bytes that pass through them, after the shortest round trip of the devices
    that they feed.

    Args:
        fleet: ``(devices,)``.
        down: Bytes to each device, ``(devices,)``.
        up: Bytes from each.
        flops: Operations of each.
    """
    used = down + up + flops > 0
    if not used.any():
        return 0.0
    busy_s = np.maximum(
        np.maximum(down / fleet.downlink_bytes_per_s, up / fleet.uplink_bytes_per_s),
        flops / fleet.flops_per_s,
    )
    last_s = float((fleet.latency_s + busy_s)[used].max())
    if not fleet.shares_lines:
        return last_s
    part = np.flatnonzero(used)
    return max(last_s, _shared_s(fleet.take(part), down[part], up[part]))


def _shared_s(fleet: FleetArrays, down: Floats, up: Floats) -> float:
    """When all bytes have passed the server, and those of each site its line."""
    first_s = float(fleet.latency_s.min())
    last_s = first_s + max(
        down.sum() / fleet.egress_bytes_per_s, up.sum() / fleet.ingress_bytes_per_s
    )
    behind = fleet.site >= 0
    begin_s = fleet.first_s_by_site
    for n_bytes, rates in (
        (down, fleet.site_downlink_bytes_per_s),
        (up, fleet.site_uplink_bytes_per_s),
    ):
        busy_s = np.bincount(fleet.site[behind], n_bytes[behind], len(rates)) / rates
        last_s = max(last_s, (begin_s + busy_s).max(where=np.isfinite(begin_s), initial=0.0))
    return float(last_s)


def _terms(operand: Operand) -> Terms:
    itemsize = operand.matrix.dtype.itemsize
    along = {operand.rows, operand.cols}
    if operand.rows is operand.cols and operand.rows in (Along.ROWS, Along.COLS):
        raise PlanError(
            f"tensor {operand.matrix.tensor_id}: both dimensions follow {operand.rows.value}, "
            "expected different axes: the cost of a tile would not be bilinear in its sides"
        )
    rows = _extent(operand, operand.rows, operand.row_scale, operand.matrix.n_rows)
    cols = _extent(operand, operand.cols, operand.col_scale, operand.matrix.n_cols)
    n_bytes = float(itemsize * rows * cols)
    if Along.ROWS in along and Along.COLS in along:
        return (0.0, 0.0, 0.0, n_bytes)
    if Along.ROWS in along:
        return (0.0, n_bytes, 0.0, 0.0)
    if Along.COLS in along:
        return (0.0, 0.0, n_bytes, 0.0)
    return (n_bytes, 0.0, 0.0, 0.0)


def _extent(operand: Operand, along: Along, scale: int, size: int) -> int:
    """Elements along one dimension per cell of the tile's side that it follows, or in all."""
    if along in (Along.ROWS, Along.COLS):
        return scale
    if along is Along.INNER and operand.slabs is not None:
        return operand.slabs.depth
    return size


def _total(parts: Sequence[Terms]) -> Terms:
    c0, c1, c2, c3 = (sum(column) for column in zip((0.0, 0.0, 0.0, 0.0), *parts, strict=True))
    return (c0, c1, c2, c3)


def _transposed(terms: Terms) -> Terms:
    return (terms[0], terms[2], terms[1], terms[3])


def _in_units(terms: Terms, rows: int, cols: int) -> Terms:
    return (terms[0], terms[1] * rows, terms[2] * cols, terms[3] * rows * cols)
