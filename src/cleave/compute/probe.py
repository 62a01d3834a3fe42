"""Tasks that measure a joining device: its rate per element type, and its link.

One block does for all. Sending it measures the downlink, a copy of it back the uplink; chained
products of it with itself measure the arithmetic without further bytes.
"""

from __future__ import annotations

import numpy as np

from cleave.compute.cases import Block, numbers
from cleave.core.matrix import DType
from cleave.core.program import Op, Program, Ref

PROBE_SIZE = 512


def probe_block() -> Block:
    """The block of every probe: fp32, `PROBE_SIZE` squared, 1 MiB.

    Its powers keep their size, so that no product over- or underflows in fp16.
    """
    return Block.of(numbers((PROBE_SIZE, PROBE_SIZE), 0) / np.sqrt(PROBE_SIZE), DType.F32)


def link_program() -> Program:
    """Returns its input as it came."""
    return Program(n_inputs=1, ops=(Op("clone", (Ref(0),)),), outputs=(1,))


def rate_program(dtype: DType, n_products: int = 8) -> Program:
    """Multiplies the probe block by itself again and again in ``dtype``; returns one fp32 number.

    Args:
        dtype: A floating type; the block is cast to it first.
        n_products: How many; `rate_flops` of the same number over ``compute_s`` is the rate.
            Ask for more where a first answer came too soon to be measured well.
    """
    products = tuple(Op("mm", (Ref(1 + i), Ref(1))) for i in range(n_products))
    last = 1 + n_products
    return Program(
        n_inputs=1,
        ops=(
            Op("cast", (Ref(0), dtype.value)),
            *products,
            Op("cast", (Ref(last), DType.F32.value)),
            Op("sum", (Ref(last + 1), (0, 1), True)),
        ),
        outputs=(last + 2,),
    )


def rate_flops(n_products: int = 8) -> float:
    """Floating-point operations of `rate_program`."""
    return 2.0 * PROBE_SIZE**3 * n_products
