"""What a layout costs on devices that hold some of the inputs already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cleave.core.device import DeviceProfile
from cleave.core.layout import Layout
from cleave.core.matrix import Matrix, Region
from cleave.core.work import Along, Fate, Operand, Slabs, Work

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Holdings(Protocol):
    """What a device holds already."""

    def holds_any(self, matrix: Matrix) -> bool:
        """Whether any of ``matrix`` is there."""
        ...

    def missing_bytes(self, matrix: Matrix, view: Region) -> int:
        """Bytes that would travel if a task read ``view`` of ``matrix`` now."""
        ...


def price(
    work: Work, layout: Layout, devices: Sequence[tuple[DeviceProfile, Holdings]]
) -> tuple[float, int]:
    """Makespan in seconds and bytes moved of a layout, given what each device holds.

    A region that several tiles of a device read is sent once.
    """
    place = {profile.device_id: i for i, (profile, _) in enumerate(devices)}
    owner = np.array([place[placement.device_id] for placement in layout], dtype=np.int64)
    tiles = np.array(
        [(p.tile.row0, p.tile.row1, p.tile.col0, p.tile.col1) for p in layout], dtype=np.int64
    )
    n_devices = len(devices)
    is_shared = len(layout) > len(set(owner.tolist()))
    down, up = np.zeros(n_devices), np.zeros(n_devices)
    for operand in work.inputs:
        regions = regions_of(operand, tiles)
        sent = _missing_bytes(operand.matrix, regions, owner, devices)
        if is_shared:
            sent = sent * _is_first(np.column_stack((owner, regions)))
        down += np.bincount(owner, sent, n_devices)
    for result in work.results:
        if result.fate is Fate.RETURNED:
            returned = _areas(regions_of(result, tiles)) * result.matrix.dtype.itemsize
            up += np.bincount(owner, returned, n_devices)
    flops = np.bincount(owner, _flops(work, tiles), n_devices)
    used = np.unique(owner)
    profiles = [devices[i][0] for i in used.tolist()]
    rates = np.array(
        [
            (p.downlink_bytes_per_s, p.flops_per_s[work.dtype], p.uplink_bytes_per_s, p.latency_s)
            for p in profiles
        ]
    ).reshape(-1, 4)
    loads = np.column_stack((down, flops, up))[used]
    seconds = rates[:, 3] + (loads / rates[:, :3]).max(axis=1, initial=0.0)
    return float(seconds.max(initial=0.0)), int(down.sum() + up.sum())


def regions_of(operand: Operand, tiles: Ints) -> Ints:
    """`Operand.region` of many tiles at once.

    Args:
        operand: What is read or written.
        tiles: Their row0, row1, col0 and col1, ``(tiles, 4)``.

    Returns:
        The same of the regions, ``(tiles, 4)``.
    """
    rows = _spans(operand, operand.rows, operand.row_scale, tiles, operand.matrix.n_rows)
    cols = _spans(operand, operand.cols, operand.col_scale, tiles, operand.matrix.n_cols)
    return np.column_stack((*rows, *cols))


def _spans(operand: Operand, along: Along, scale: int, tiles: Ints, size: int) -> tuple[Ints, Ints]:
    slabs = operand.slabs
    if along is Along.ROWS:
        return tiles[:, 0] * scale, tiles[:, 1] * scale
    if along is Along.COLS:
        before = 0 if slabs is None else _slab(slabs, tiles) * slabs.n_cols
        return (tiles[:, 2] - before) * scale, (tiles[:, 3] - before) * scale
    if along is Along.INNER and slabs is not None:
        start = _slab(slabs, tiles) * slabs.depth
        return start, np.minimum(start + slabs.depth, slabs.n_inner)
    return np.zeros(len(tiles), dtype=np.int64), np.full(len(tiles), size)


def _slab(slabs: Slabs, tiles: Ints) -> Ints:
    return tiles[:, 2] // slabs.n_cols if slabs.count > 1 else np.zeros(len(tiles), dtype=np.int64)


def _flops(work: Work, tiles: Ints) -> Floats:
    flops = work.flops_per_cell * _areas(tiles)
    slabs = work.slabs
    if slabs is None or slabs.count == 1:
        return flops
    start = _slab(slabs, tiles) * slabs.depth
    depth = np.minimum(start + slabs.depth, slabs.n_inner) - start
    return np.asarray(flops * depth / slabs.depth)


def _areas(regions: Ints) -> Floats:
    """As floating-point numbers: products of sides may be large."""
    sides = regions[:, 1::2] - regions[:, ::2]
    return np.asarray(sides[:, 0] * sides[:, 1], dtype=np.float64)


def _missing_bytes(
    matrix: Matrix,
    regions: Ints,
    owner: Ints,
    devices: Sequence[tuple[DeviceProfile, Holdings]],
) -> Floats:
    """Bytes that travel for each region; only those who hold some of the matrix are asked."""
    sent = _areas(regions) * matrix.dtype.itemsize
    holders = [i for i, (_, ledger) in enumerate(devices) if ledger.holds_any(matrix)]
    if holders:
        for i in np.flatnonzero(np.isin(owner, holders)).tolist():
            ledger = devices[owner[i]][1]
            sent[i] = ledger.missing_bytes(matrix, Region(*regions[i].tolist()))
    return sent


def _is_first(rows: Ints) -> npt.NDArray[np.bool_]:
    """Which rows differ from all before them."""
    is_first = np.zeros(len(rows), dtype=bool)
    is_first[np.unique(rows, axis=0, return_index=True)[1]] = True
    return is_first
