"""The program ops in torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from cleave.compute.compute_types import ComputeTypes
from cleave.compute.executor import (
    Function,
    check_norm,
    check_pad,
    check_slice,
    sizes_without_minus_one,
)
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
        "bmm": partial(_product, types, torch.bmm),
        "cast": _cast,
        "cat": _cat,
        "clone": torch.clone,
        "div": torch.div,
        "dropout": _dropout,
        "exp": torch.exp,
        "expand": _expand,
        "full_like": torch.full_like,
        "gelu": _gelu,
        "gelu_backward": _gelu_backward,
        "layer_norm": _layer_norm,
        "layer_norm_backward": _layer_norm_backward,
        "mean": _mean,
        "mm": partial(_product, types, torch.mm),
        "mul": torch.mul,
        "neg": torch.neg,
        "pad": _pad,
        "permute": torch.permute,
        "pow": torch.pow,
        "relu": torch.relu,
        "rsqrt": torch.rsqrt,
        "sigmoid": torch.sigmoid,
        "silu": torch.nn.functional.silu,
        "slice": _slice,
        "softmax": torch.softmax,
        "softmax_backward": _softmax_backward,
        "squeeze": torch.squeeze,
        "sub": torch.sub,
        "sum": _sum,
        "t": torch.t,
        "tanh": torch.tanh,
        "tanh_backward": torch.ops.aten.tanh_backward.default,
        "transpose": torch.transpose,
        "unsqueeze": torch.unsqueeze,
        "view": _view,
        "where": _where,
    }


def _product(types: ComputeTypes, product: Function, a: Tensor, b: Tensor) -> Tensor:
    dtype = types.of(a.dtype)
    result: Tensor
    if dtype == a.dtype or a.dtype != b.dtype:
        result = product(a, b)
    else:
        result = product(a.to(dtype), b.to(dtype)).to(a.dtype)
    return result


def _view(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return x.reshape(sizes_without_minus_one(x.shape, sizes))


def _sum(x: Tensor, dims: tuple[int, ...] | None = None, keep: bool = False) -> Tensor:
    return torch.sum(x, dim=dims or tuple(range(x.dim())), keepdim=keep)


def _mean(x: Tensor, dims: tuple[int, ...] | None = None, keep: bool = False) -> Tensor:
    return torch.mean(x, dim=dims or tuple(range(x.dim())), keepdim=keep)


def _cat(a: Tensor, b: Tensor, dim: int) -> Tensor:
    return torch.cat((a, b), dim)


def _expand(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return x.expand(sizes)


def _slice(x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    check_slice(x.shape, dim, start, stop)
    return x.narrow(dim, start, stop - start)


def _pad(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    check_pad(x.shape, dim, before, after)
    after_it = x.dim() - 1 - dim % x.dim()
    return torch.nn.functional.pad(x, (0, 0) * after_it + (before, after))


def _where(condition: Tensor, a: Tensor | float, b: Tensor | float) -> Tensor:
    result: Tensor = torch.where(condition, a, b)
    return result


def _softmax_backward(grad: Tensor, out: Tensor, dim: int) -> Tensor:
    result: Tensor = torch.ops.aten._softmax_backward_data(grad, out, dim, out.dtype)
    return result


def _layer_norm(
    x: Tensor, n_dims: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    check_norm(x.shape, n_dims)
    return torch.native_layer_norm(x, x.shape[-n_dims:], weight, bias, eps)


def _layer_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, n_dims: int, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    check_norm(x.shape, n_dims)
    shape = x.shape[-n_dims:]
    one = x.new_ones(shape) if weight is None else weight
    dx, d_weight, d_bias = torch.ops.aten.native_layer_norm_backward(
        grad, x, shape, mean, rstd, one, one, [True, True, True]
    )
    return dx, d_weight, d_bias


def _cast(x: Tensor, dtype: str) -> Tensor:
    return x.to(DTYPES[DType(dtype)])


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    result: Tensor = torch.nn.functional.gelu(x, approximate=approximate)
    return result


def _gelu_backward(grad: Tensor, x: Tensor, approximate: str) -> Tensor:
    result: Tensor = torch.ops.aten.gelu_backward(grad, x, approximate=approximate)
    return result


def _dropout(x: Tensor, p: float, seed: int, row0: int, col0: int, n_cols: int) -> Tensor:
    n_rows, width = x.shape
    block = Region(row0, row0 + n_rows, col0, col0 + width)
    with arrays_on(x.device):
        kept = keep_block(torch, block, n_cols, seed=seed, dropout=p)
    result: Tensor = x * kept * kept_factor(p)
    return result
