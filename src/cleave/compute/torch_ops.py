"""The program ops in torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from cleave.compute.compute_types import ComputeTypes
from cleave.compute.executor import Function, sizes_without_minus_one
from cleave.compute.philox import keep_block, kept_factor
from cleave.compute.torch_attention import arrays_on, attention, attention_backward
from cleave.compute.torch_types import DTYPES
from cleave.core.matrix import DType, Region

Tensor = torch.Tensor


def functions(types: ComputeTypes) -> Mapping[str, Function]:
    """The function of each op; narrow products are computed in the types that ``types`` chose."""
    return {
        "add": torch.add,
        "attention": partial(attention, types),
        "attention_backward": partial(attention_backward, types),
        "cast": _cast,
        "clone": torch.clone,
        "dropout": _dropout,
        "gelu": _gelu,
        "mm": partial(_mm, types),
        "mul": torch.mul,
        "permute": torch.permute,
        "relu": torch.relu,
        "silu": torch.nn.functional.silu,
        "softmax": torch.softmax,
        "sub": torch.sub,
        "sum": _sum,
        "t": torch.t,
        "transpose": torch.transpose,
        "view": _view,
    }


def _mm(types: ComputeTypes, a: Tensor, b: Tensor) -> Tensor:
    dtype = types.of(a.dtype)
    if dtype == a.dtype or a.dtype != b.dtype:
        return torch.mm(a, b)
    return torch.mm(a.to(dtype), b.to(dtype)).to(a.dtype)


def _view(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return x.reshape(sizes_without_minus_one(x.shape, sizes))


def _sum(x: Tensor, dims: tuple[int, ...] | None = None, keep: bool = False) -> Tensor:
    return torch.sum(x, dim=dims or tuple(range(x.dim())), keepdim=keep)


def _cast(x: Tensor, dtype: str) -> Tensor:
    return x.to(DTYPES[DType(dtype)])


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    result: Tensor = torch.nn.functional.gelu(x, approximate=approximate)
    return result


def _dropout(x: Tensor, p: float, seed: int, row0: int, col0: int, n_cols: int) -> Tensor:
    n_rows, width = x.shape
    block = Region(row0, row0 + n_rows, col0, col0 + width)
    with arrays_on(x.device):
        kept = keep_block(torch, block, n_cols, seed=seed, dropout=p)
    result: Tensor = x * kept * kept_factor(p)
    return result
