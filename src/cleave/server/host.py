"""What the host itself can do, so that what is cheaper here than to send stays here."""

from __future__ import annotations

import time
from functools import cache

import torch

from cleave.compute.torch_types import DTYPES
from cleave.core.matrix import DType
from cleave.core.work import Work

_SIDE = 512
_ENOUGH_S = 0.02


def host_seconds(work: Work) -> float:
    """Expected time of work on the host's own processor."""
    return work.flops(work.whole) / _flops_per_s(work.dtype)


@cache
def _flops_per_s(dtype: DType) -> float:
    """Measured once per element type, by square GEMMs for a few hundredths of a second."""
    a = torch.ones(_SIDE, _SIDE, dtype=DTYPES[dtype])
    torch.mm(a, a)
    n_products = 0
    begin_s = time.perf_counter()
    while (took_s := time.perf_counter() - begin_s) < _ENOUGH_S:
        torch.mm(a, a)
        n_products += 1
    return n_products * 2.0 * _SIDE**3 / took_s
