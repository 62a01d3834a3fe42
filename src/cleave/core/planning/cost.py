"""What a tile costs a device, in bytes, flops and seconds.

One form holds for every kind of work: a tile of m rows and n columns costs
``c0 + c1 * m + c2 * n + c3 * m * n`` of each of downlink, uplink and memory, and ``f * m * n``
flops. Sending, computing and returning overlap, so the time of a tile is the round trip plus the
longest of the three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cleave.core.device import DeviceProfile
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
        """The form of a work whose operands are all still to be sent.

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


@dataclass(frozen=True, slots=True, eq=False)
class FleetArrays:
    """The rates of devices as arrays of shape ``(devices,)``, for one element type."""

    device_id: Ints
    downlink_bytes_per_s: Floats
    uplink_bytes_per_s: Floats
    flops_per_s: Floats
    latency_s: Floats
    memory_bytes: Floats

    @classmethod
    def of(cls, devices: Sequence[DeviceProfile], dtype: DType) -> FleetArrays:
        """The devices that may be given ``dtype``, in their order."""
        able = [device for device in devices if dtype in device.flops_per_s]
        rates = [
            (
                device.downlink_bytes_per_s,
                device.uplink_bytes_per_s,
                device.flops_per_s[dtype],
                device.latency_s,
                device.memory_bytes,
            )
            for device in able
        ]
        columns = np.array(rates, dtype=np.float64).reshape(len(able), 5).T
        ids = np.array([device.device_id for device in able], dtype=np.int64)
        return cls(ids, *np.ascontiguousarray(columns))

    def __len__(self) -> int:
        return len(self.device_id)

    def rates(self) -> list[Rates]:
        """The same as plain numbers, for loops over few devices."""
        columns = (
            self.downlink_bytes_per_s,
            self.uplink_bytes_per_s,
            self.flops_per_s,
            self.latency_s,
            self.memory_bytes,
        )
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def take(self, indices: Ints, *, shares: Floats | float = 1.0) -> FleetArrays:
        """The devices at ``indices``, each with the given share of its rates."""
        return FleetArrays(
            self.device_id[indices],
            self.downlink_bytes_per_s[indices] * shares,
            self.uplink_bytes_per_s[indices] * shares,
            self.flops_per_s[indices] * shares,
            self.latency_s[indices],
            self.memory_bytes[indices],
        )


def makespan_s(form: CostForm, fleet: FleetArrays, cells: Ints) -> float:
    """When the last device is done, if each does its tiles one after the other.

    Args:
        form: What a tile costs by its sides.
        fleet: Who does them.
        cells: Index of the device, row0, row1, col0, col1 of each tile, ``(tiles, 5)``.
    """
    index = cells[:, 0]
    m, n = cells[:, 2] - cells[:, 1], cells[:, 4] - cells[:, 3]

    def total(terms: Terms) -> Floats:
        cost = terms[0] + terms[1] * m + terms[2] * n + terms[3] * m * n
        return np.bincount(index, weights=cost, minlength=len(fleet)).astype(np.float64)

    busy_s = np.maximum(
        np.maximum(
            total(form.down) / fleet.downlink_bytes_per_s, total(form.up) / fleet.uplink_bytes_per_s
        ),
        total((0.0, 0.0, 0.0, form.flops)) / fleet.flops_per_s,
    )
    return float((fleet.latency_s + busy_s)[index].max())


def _terms(operand: Operand) -> Terms:
    itemsize = operand.matrix.dtype.itemsize
    along = {operand.rows, operand.cols}
    if operand.rows is operand.cols and operand.rows is not Along.ALL:
        raise PlanError(
            f"tensor {operand.matrix.tensor_id}: both dimensions follow {operand.rows.value}, "
            "expected different axes: the cost of a tile would not be bilinear in its sides"
        )
    rows = operand.matrix.n_rows if operand.rows is Along.ALL else operand.row_scale
    cols = operand.matrix.n_cols if operand.cols is Along.ALL else operand.col_scale
    n_bytes = float(itemsize * rows * cols)
    if Along.ROWS in along and Along.COLS in along:
        return (0.0, 0.0, 0.0, n_bytes)
    if Along.ROWS in along:
        return (0.0, n_bytes, 0.0, 0.0)
    if Along.COLS in along:
        return (0.0, 0.0, n_bytes, 0.0)
    return (n_bytes, 0.0, 0.0, 0.0)


def _total(parts: Sequence[Terms]) -> Terms:
    c0, c1, c2, c3 = (sum(column) for column in zip((0.0, 0.0, 0.0, 0.0), *parts, strict=True))
    return (c0, c1, c2, c3)


def _transposed(terms: Terms) -> Terms:
    return (terms[0], terms[2], terms[1], terms[3])


def _in_units(terms: Terms, rows: int, cols: int) -> Terms:
    return (terms[0], terms[1] * rows, terms[2] * cols, terms[3] * rows * cols)
