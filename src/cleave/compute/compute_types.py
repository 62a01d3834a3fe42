"""Which type torch computes each wire type in: the fastest that is exact enough, measured."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_ROUGH_SIZE, _SIZE = 128, 512
_HOPELESS_RATIO = 3.0


class ComputeTypes:
    """Chooses between multiplying a narrow type as it is and by way of fp32, once per type.

    A CPU may multiply fp16 a hundred times more slowly than fp32, and so may an older one bf16.

    Args:
        device: Where the products are made.
    """

    def __init__(self, device: torch.device) -> None:
        """Measure nothing yet."""
        self._device = device
        self._chosen: dict[torch.dtype, torch.dtype] = {}

    def of(self, dtype: torch.dtype) -> torch.dtype:
        """The type to compute ``dtype`` in; the first call for bf16 or fp16 takes some 50 ms."""
        if dtype not in (torch.bfloat16, torch.float16):
            return dtype
        if dtype not in self._chosen:
            self._chosen[dtype] = dtype if self._is_better_as_it_is(dtype) else torch.float32
        return self._chosen[dtype]

    def _is_better_as_it_is(self, dtype: torch.dtype) -> bool:
        try:
            narrow_s, wide_s = self._seconds(dtype, _ROUGH_SIZE)
            if narrow_s > _HOPELESS_RATIO * wide_s or not self._is_exact_enough(dtype):
                return False
            narrow_s, wide_s = self._seconds(dtype, _SIZE)
        except RuntimeError:  # no such product on this device
            return False
        return narrow_s < wide_s

    def _seconds(self, dtype: torch.dtype, size: int) -> tuple[float, float]:
        x = self._operand(dtype, size)
        return (
            self._best_s(lambda: torch.mm(x, x)),
            self._best_s(lambda: torch.mm(x.float(), x.float()).to(dtype)),
        )

    def _is_exact_enough(self, dtype: torch.dtype) -> bool:
        """Whether sums of numbers of one sign are kept in fp32; in bf16 they would stop growing."""
        x = self._operand(dtype, _SIZE)[:64]
        exact = torch.mm(x.float(), x.float().t())
        error = (torch.mm(x, x.t()).float() - exact).abs() / exact
        return bool(error.max() < torch.finfo(dtype).eps)

    def _operand(self, dtype: torch.dtype, size: int) -> torch.Tensor:
        values = torch.linspace(0.5, 1.0, size * size, device=self._device)
        return values.reshape(size, size).to(dtype)

    def _best_s(self, product: Callable[[], torch.Tensor]) -> float:
        best_s = float("inf")
        for _ in range(4):  # the first one also builds the kernel
            start_s = time.perf_counter()
            product()[0, 0].item()  # waits for an accelerator
            best_s = min(best_s, time.perf_counter() - start_s)
        return best_s
