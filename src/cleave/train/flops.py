"""How many floating-point operations a step takes on the host, counted as torch counts them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

Shape = tuple[int, ...]


def host_flops(step: Callable[[], object]) -> int:
    """Operations of the GEMMs and attentions that ``step`` does on this machine, devices excluded.

    Run on a model that is not offloaded, this is the total of a local step. With an offloaded one,
    it and the device flops of ``fleet.stats()`` add up to the same total.

    Torch's counter alone gives 0 for attention on the CPU. Here it counts as in its formulas for
    GPUs and in `cleave.core.operations`: two products forward; five backward, of which one is the
    recomputed scores; causal and masked pairs are counted. With dropout torch has no fused
    attention on the CPU and keeps the scores, so a local step then takes one product fewer.
    """
    aten = torch.ops.aten
    formulas = {
        aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
    }
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        step()
    return int(counter.get_total_flops())


def _attention_flops(query: Shape, key: Shape, value: Shape, *_: object, **__: object) -> int:
    return 2 * math.prod(query[:3]) * key[2] * (query[3] + value[3])


def _attention_backward_flops(
    _out_grad: Shape, query: Shape, key: Shape, value: Shape, *_: object, **__: object
) -> int:
    return 2 * math.prod(query[:3]) * key[2] * (3 * query[3] + 2 * value[3])
