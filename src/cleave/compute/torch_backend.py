"""The backend for machines with torch: on the CPU, on CUDA or on MPS."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import psutil
import torch

from cleave.compute.compute_types import ComputeTypes
from cleave.compute.executor import check_piece, memory_error, run_program
from cleave.compute.torch_ops import functions
from cleave.compute.torch_types import DTYPES, wire_dtype
from cleave.core.matrix import DType, Region
from cleave.core.program import Program
from cleave.errors import ConfigError, ProgramError


class TorchBackend:
    """Computes with torch on one device.

    Args:
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` (or ``"cuda:1"``) or ``"mps"``.
        threads: CPU threads of torch in this process; None leaves them as they are.

    Raises:
        ConfigError: If this machine or this torch has no such device.
    """

    def __init__(self, device: str = "auto", threads: int | None = None) -> None:
        """Take the device; nothing is measured yet."""
        self._device = _find_device(device)
        self.name = f"torch-{self._device.type}"
        if threads is not None:
            torch.set_num_threads(threads)
        if self._device.type == "cuda":  # sums stay in fp32
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self._types = ComputeTypes(self._device)
        self._functions = functions(self._types)

    @property
    def ops(self) -> frozenset[str]:
        """Names of the program ops it has."""
        return frozenset(self._functions)

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Element types it can take in and give out."""
        on_mps = self._device.type == "mps"
        return tuple(dtype for dtype in DType if not (on_mps and dtype is DType.F64))

    def measure_compute_types(self) -> dict[DType, DType]:
        """The type each narrow floating type is computed in; takes some 0.1 s once."""
        chosen = {d: wire_dtype(self._types.of(DTYPES[d])) for d in (DType.BF16, DType.F16)}
        return {dtype: computed for dtype, computed in chosen.items() if computed is not None}

    def empty(self, n_rows: int, n_cols: int, dtype: DType) -> torch.Tensor:
        """An array to be written piece by piece.

        Raises:
            DeviceMemoryError: If memory runs out.
        """
        try:
            return torch.empty((n_rows, n_cols), dtype=DTYPES[dtype], device=self._device)
        except RuntimeError as error:
            if _is_out_of_memory(error):
                raise memory_error(error, self._memory_bytes()) from error
            raise

    def write(self, array: torch.Tensor, region: Region, payload: memoryview) -> None:
        """Copy little-endian elements, row-major, into a region of an array made by `empty`.

        Raises:
            ProtocolError: If the region lies outside the array or the payload has another size.
        """
        check_piece(region, payload, shape=array.shape, itemsize=array.element_size())
        if region.area == 0:
            return
        target = self.view(array, region)
        on_host = target if target.device.type == "cpu" else torch.empty_like(target, device="cpu")
        # By way of numpy: torch warns when it is given memory that it may only read.
        host_bytes = on_host.view(torch.uint8).numpy()
        host_bytes[:] = np.frombuffer(payload, dtype=np.uint8).reshape(host_bytes.shape)
        if on_host is not target:
            target.copy_(on_host)

    def view(self, array: torch.Tensor, region: Region) -> torch.Tensor:
        """A region of an array, without a copy."""
        return array[region.row0 : region.row1, region.col0 : region.col1]

    def read(self, array: torch.Tensor, dtype: DType) -> memoryview:
        """The array's elements in ``dtype``, row-major, as bytes; copied only to cast or gather."""
        on_host = array.detach().to("cpu", DTYPES[dtype]).contiguous()
        return on_host.reshape(-1).view(torch.uint8).numpy().data

    def run(self, program: Program, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The program's outputs; dead intermediates are freed at once.

        Raises:
            ProgramError: If an op is unknown or misused.
            DeviceMemoryError: If memory runs out.
        """
        try:
            with torch.no_grad():
                return run_program(program, inputs, self._functions)
        except ProgramError as error:
            if error.__cause__ is not None and _is_out_of_memory(error.__cause__):
                raise memory_error(error.__cause__, self._memory_bytes()) from error
            raise

    def add(self, accumulator: torch.Tensor, array: torch.Tensor) -> None:
        """Add ``array`` to ``accumulator`` in place."""
        accumulator.add_(array)

    def n_bytes(self, array: torch.Tensor) -> int:
        """Bytes that an array occupies."""
        return array.numel() * array.element_size()

    def synchronize(self) -> None:
        """Wait until queued arithmetic is done (for timing)."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()

    def _memory_bytes(self) -> int:
        if self._device.type == "cuda":
            return int(torch.cuda.mem_get_info(self._device)[1])
        return int(psutil.virtual_memory().total)


def _find_device(name: str) -> torch.device:
    has = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, available in has.items() if available))
    if not has.get(name.partition(":")[0], False):
        there = ", ".join(kind for kind, available in has.items() if available)
        raise ConfigError(
            f"device {name!r} is not usable here, this torch has: {there}. "
            "Take one of these, or install a torch built for your accelerator"
        )
    return torch.device(name)


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError)
        and ("can't allocate memory" in text or "out of memory" in text)
    )
