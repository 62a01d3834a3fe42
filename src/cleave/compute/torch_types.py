"""Element types of the wire as torch types, and back."""

from __future__ import annotations

import torch

from cleave.core.matrix import DType

DTYPES: dict[DType, torch.dtype] = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.BF16: torch.bfloat16,
    DType.F16: torch.float16,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
}
_NAMES = {torch_dtype: dtype for dtype, torch_dtype in DTYPES.items()}


def wire_dtype(dtype: torch.dtype) -> DType | None:
    """The element type that travels, None if such elements may not."""
    return _NAMES.get(dtype)
