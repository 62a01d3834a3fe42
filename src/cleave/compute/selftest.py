"""The sums a joining device must get right before it is given any that count.

Plain descriptions: the server sends each case as an ordinary task and checks what comes back.
Honest hardware can be wrong without an error (a fast mode, an old driver), mostly at odd shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from cleave.compute.cases import (
    ROUNDING,
    Block,
    Case,
    Exact,
    Expected,
    make_case,
    numbers,
    stand_in,
)
from cleave.compute.selftest_attention import attention_cases
from cleave.core.matrix import DType
from cleave.core.operations import Gemm
from cleave.core.work import Along

_SIZES = ((37, 53, 29), (33, 47, 1), (9, 70, 2), (65, 3, 4), (1, 301, 65), (2, 4099, 8))
_LONG_SUM = (3, 5, 2048)  # summed in bf16 or fp16 it would stop growing
_SLIM = 2


def selftest_cases(
    dtypes: Iterable[DType],
    ops: frozenset[str],
    largest: tuple[int, int, int] | None = None,
) -> list[Case]:
    """The cases for a device, the same for every device alike; together some 5 million flops.

    In fp32 they take 0.32 MB down and 0.07 MB up, with a vocabulary of 50,257 in ``largest`` 0.8 MB
    and 0.5 MB; in bf16 half of that.

    Args:
        dtypes: Element types the device says it takes; others than floating ones are passed over.
        ops: Names of the ops it says it has.
        largest: Sizes (m, n, k) of the run's largest product: each is tried beside small others.
    """
    cases: list[Case] = []
    for dtype in (dtype for dtype in dtypes if dtype in ROUNDING):
        if {"mm", "t"} <= ops:
            cases += _gemm_cases(dtype, largest)
        if {"attention", "attention_backward", "view"} <= ops:
            cases += attention_cases(dtype)
    return cases


def _gemm_cases(dtype: DType, largest: tuple[int, int, int] | None) -> list[Case]:
    sizes = list(_SIZES)
    if largest is not None:
        m, n, k = largest
        sizes += [(m, _SLIM, _SLIM), (_SLIM, n, _SLIM), (_SLIM, _SLIM, k)]
    cases = [_gemm_case(dtype, size, (False, False)) for size in sizes]
    cases += [_gemm_case(dtype, _SIZES[0], turned) for turned in ((True, False), (False, True))]
    m, n, k = _LONG_SUM
    ones = np.full((m, k), 0.75), np.full((k, n), 0.75)
    cases.append(_product(f"long sum {dtype.value}", dtype, ones, (False, False)))
    broken = numbers((2, 3), 1), numbers((3, 2), 2)
    broken[0][0, 1], broken[1][2, 1] = math.nan, math.inf
    cases.append(_product(f"NaN and infinity {dtype.value}", dtype, broken, (False, False)))
    return cases


def _gemm_case(dtype: DType, size: tuple[int, int, int], turned: tuple[bool, bool]) -> Case:
    m, n, k = size
    a = numbers((k, m) if turned[0] else (m, k), m)
    b = numbers((n, k) if turned[1] else (k, n), n)
    turns = "".join(" transposed" if t else " plain" for t in turned)
    return _product(f"product {m}x{n}x{k}{turns} {dtype.value}", dtype, (a, b), turned)


def _product(
    name: str, dtype: DType, operands: tuple[Exact, Exact], turned: tuple[bool, bool]
) -> Case:
    blocks = tuple(Block.of(x, dtype) for x in operands)
    a, b = (x.exact().T if turn else x.exact() for x, turn in zip(blocks, turned, strict=True))
    gemm = Gemm(
        name=name,
        a=blocks[0].matrix,
        b=blocks[1].matrix,
        out=stand_in((a.shape[0], b.shape[1]), dtype),
        a_transposed=turned[0],
        b_transposed=turned[1],
    )
    with np.errstate(invalid="ignore"):
        expected = Expected(a @ b, np.abs(a) @ np.abs(b) * ROUNDING[dtype])
    work = gemm.work(m=Along.ROWS, n=Along.COLS, k=Along.ALL)
    return make_case(work, work.whole, blocks, (expected,))
