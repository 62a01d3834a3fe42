"""Elements as they cross the wire, in numpy arrays; bf16, which numpy lacks, as pairs of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cleave.core.matrix import DType

Elements = npt.NDArray[Any]

BF16 = np.dtype("V2")
STORAGE: dict[DType, np.dtype[Any]] = {
    DType.F64: np.dtype("<f8"),
    DType.F32: np.dtype("<f4"),
    DType.BF16: BF16,
    DType.F16: np.dtype("<f2"),
    DType.I64: np.dtype("<i8"),
    DType.I32: np.dtype("<i4"),
    DType.U8: np.dtype("u1"),
    DType.BOOL: np.dtype("?"),
}

_CHUNK = 1 << 15  # elements whose intermediates fit a core's cache
_QUIET_NAN = 0x7FC0


def encode(array: Elements, dtype: DType) -> Elements:
    """The array's values as elements of ``dtype``, rounded to nearest even; itself if it has them.

    NaN stays NaN and infinity stays infinite; what is too large for ``dtype`` becomes infinite.
    """
    if array.dtype == STORAGE[dtype]:
        return array
    wide = decode(array)
    if dtype is DType.BF16:
        return _round_to_bf16(wide)
    with np.errstate(over="ignore", invalid="ignore"):
        return wide.astype(STORAGE[dtype])


def decode(array: Elements) -> Elements:
    """The array in a type that numpy computes in: bf16 and fp16 as fp32, any other as it is."""
    if array.dtype == BF16:
        bits = array.view(np.uint16).astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    if array.dtype == np.float16:
        return array.astype(np.float32)
    return array


def to_bytes(elements: Elements) -> memoryview:
    """The elements, row-major, as bytes; no copy if they lie that way already."""
    return np.ascontiguousarray(elements).reshape(-1).view(np.uint8).data


def from_bytes(payload: memoryview | bytes, shape: tuple[int, ...], dtype: DType) -> Elements:
    """Elements that came over the wire, without a copy.

    Raises:
        ValueError: If ``payload`` has another size than ``shape`` asks for.
    """
    return np.frombuffer(payload, dtype=STORAGE[dtype]).reshape(shape)


def _round_to_bf16(array: Elements) -> Elements:
    with np.errstate(over="ignore"):
        flat = np.ascontiguousarray(array, dtype=np.float32).reshape(-1)
    rounded = np.empty(flat.shape, dtype=np.uint16)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        bits = part.view(np.uint32)
        # Half of the dropped part, and one more where the kept part is odd: ties go to even.
        up = bits >> 16
        up &= 1
        up += 0x7FFF
        up += bits
        up >>= 16
        out = rounded[start : start + _CHUNK]
        out[:] = up
        nan = np.isnan(part)
        if nan.any():
            out[nan] = (bits[nan] >> 16) & 0x8000 | _QUIET_NAN
    return rounded.view(BF16).reshape(array.shape)
