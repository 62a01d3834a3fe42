"""Admission: a joining device is tested and measured by ordinary tasks before any that count."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from cleave.compute.cases import Block, Case
from cleave.compute.probe import link_program, probe_block, rate_flops, rate_program
from cleave.compute.selftest import selftest_cases
from cleave.compute.torch_types import DTYPES
from cleave.core.device import DeviceProfile
from cleave.core.matrix import BlockRef, DType, Matrix, Region
from cleave.core.program import Program
from cleave.core.work import Fate, TaskOutput
from cleave.errors import CleaveError, DeviceError
from cleave.server.connection import Attempt, Connection, Filling, Payloads
from cleave.server.operands import as_bytes
from cleave.units import format_bytes
from cleave.wire.messages import (
    AgentMessage,
    Failed,
    Finished,
    Goodbye,
    Hello,
    InputSpec,
    OutputSpec,
    Paused,
    Refused,
    RunTask,
)
from cleave.wire.pieces import pieces

log = logging.getLogger(__name__)

FIRST_ID = 1 << 40
"""Task ids and handles of admission lie above all that the scheduler will ever use."""

MIN_MEMORY_BYTES = 4_000_000
"""Less is of no use, and too little for the tests."""

_PINGS = 3
_LINK_COLS = 1 << 12
_LINK_ROWS = (64, 256)  # 1 MB, and 4 MB where that takes next to no time
_FAST_LINK_S = 0.05
_SHORTEST_S = 1e-4
_ENOUGH_S = 0.01
_MOST_PRODUCTS = 64


class NotNowError(CleaveError):
    """A device cannot be tested at the moment; it may come again."""


async def admit(
    connection: Connection, hello: Hello, largest: tuple[int, int, int]
) -> DeviceProfile:
    """Test and measure a device.

    Args:
        connection: Open, with its writer running; nobody else listens to it meanwhile.
        hello: What the device said of itself.
        largest: Sizes (m, n, k) of the run's largest GEMM so far.

    Raises:
        DeviceError: If it computes nothing right, or lends too little memory to be of use.
        NotNowError: If its owner comes first at the moment.
        ConnectionError: If it leaves.
    """
    prober = _Prober(connection)
    before, connection.listener = connection.listener, prober
    try:
        if hello.memory_bytes < MIN_MEMORY_BYTES:
            raise DeviceError(
                f"it lends {format_bytes(hello.memory_bytes)}, "
                f"at least {format_bytes(MIN_MEMORY_BYTES)} are needed: "
                "lend more with --memory"
            )
        latency_s = min([await prober.link(1, 1) for _ in range(_PINGS)])
        down, up = await _link_rates(prober, latency_s, hello.memory_bytes)
        right, faults = await _selftest(prober, hello, largest)
        if not right:
            raise DeviceError(
                "the self-test failed for every element type; the first fault: "
                + (faults[0] if faults else "the agent announces no type that can be tested")
            )
        for fault in faults:
            log.warning("%s is given no tasks of a type that it gets wrong: %s", hello.name, fault)
        return DeviceProfile(
            device_id=connection.device_id,
            name=connection.name,
            flops_per_s={dtype: await prober.flops_per_s(dtype) for dtype in right},
            downlink_bytes_per_s=down,
            uplink_bytes_per_s=up,
            latency_s=latency_s,
            memory_bytes=max(1, hello.memory_bytes),
            ops=frozenset(hello.ops),
        )
    finally:
        connection.listener = before


async def _link_rates(prober: _Prober, latency_s: float, memory_bytes: int) -> tuple[float, float]:
    for n_rows in _LINK_ROWS:
        if 2 * n_rows * _LINK_COLS * DType.F32.itemsize > memory_bytes:
            break
        down_s = await prober.link(n_rows, 1)
        up_s = await prober.link(n_rows, n_rows, again=True)
        await prober.forget()
        n_bytes = n_rows * _LINK_COLS * DType.F32.itemsize
        down = n_bytes / max(_SHORTEST_S, down_s - latency_s)
        up = n_bytes / max(_SHORTEST_S, up_s - latency_s)
        if max(down_s, up_s) > _FAST_LINK_S:
            break
    return down, up


async def _selftest(
    prober: _Prober, hello: Hello, largest: tuple[int, int, int]
) -> tuple[list[DType], list[str]]:
    """Element types that the device gets right, and what it gets wrong."""
    right: list[DType] = []
    faults: list[str] = []
    for dtype in dict.fromkeys(hello.dtypes):
        cases = selftest_cases([dtype], frozenset(hello.ops), largest)
        found = []
        for case in cases:
            fault = await _try(prober, case)
            if fault is not None:
                found.append(fault)
                break
        if cases and not found:
            right.append(dtype)
        faults += found
    return right, faults


async def _try(prober: _Prober, case: Case) -> str | None:
    outputs = [
        _Output(n_rows, n_cols, dtype)
        for (n_rows, n_cols), dtype in zip(case.output_shapes, case.output_dtypes, strict=True)
    ]
    try:
        results, _ = await prober.run(case.program, case.inputs, outputs)
    except DeviceError as error:
        return f"{case.name}: {error}"
    return case.check([as_bytes(result) for result in results])


@dataclass(frozen=True, slots=True)
class _Output:
    n_rows: int
    n_cols: int
    dtype: DType


class _Prober:
    """Runs single tasks on a device and waits for each."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ids = itertools.count(FIRST_ID)
        self._answer: asyncio.Future[AgentMessage] = asyncio.get_running_loop().create_future()
        self._link_handle = 0
        self._handles: list[int] = []

    def heard(self, connection: Connection, message: AgentMessage) -> None:
        """The end of the task that is under way."""
        del connection
        ends = (Finished, Refused, Failed, Goodbye, Paused)
        if isinstance(message, ends) and not self._answer.done():
            self._answer.set_result(message)

    async def run(
        self, program: Program, inputs: Sequence[Block], outputs: Sequence[_Output]
    ) -> tuple[list[torch.Tensor], float]:
        """The results of a program on these inputs, and the device's seconds of computing."""
        specs, fillings = [], []
        for block in inputs:
            n_rows, n_cols = block.elements.shape
            handle = self._handle()
            specs.append(InputSpec(handle, n_rows, n_cols, block.dtype, 0, n_rows, 0, n_cols, 0))
            payload, itemsize = block.payload(), block.dtype.itemsize
            fillings.append(Filling(handle, partial(_cut, payload, n_rows, n_cols, itemsize)))
        results, compute_s = await self._task(program, specs, fillings, outputs)
        await self.forget()
        return results, compute_s

    async def link(self, n_rows: int, n_rows_back: int, *, again: bool = False) -> float:
        """Seconds until rows have gone down (unless they did before) and the last come back."""
        handle = self._link_handle if again else self._handle()
        self._link_handle = handle
        spec = InputSpec(
            handle,
            n_rows,
            _LINK_COLS,
            DType.F32,
            n_rows - n_rows_back,
            n_rows,
            0,
            _LINK_COLS,
            n_rows if again else 0,
        )
        payload = as_bytes(torch.zeros(n_rows, _LINK_COLS))
        filling = Filling(handle, partial(_cut, payload, n_rows, _LINK_COLS, 4))
        begin_s = time.perf_counter()
        output = _Output(n_rows_back, _LINK_COLS, DType.F32)
        await self._task(link_program(), [spec], [] if again else [filling], [output])
        return time.perf_counter() - begin_s

    async def flops_per_s(self, dtype: DType) -> float:
        """The rate of chained GEMMs, as many as take long enough to measure."""
        n_products = 1
        while True:
            number = _Output(1, 1, DType.F32)
            program = rate_program(dtype, n_products)
            _, compute_s = await self.run(program, [probe_block()], [number])
            if compute_s >= _ENOUGH_S or n_products >= _MOST_PRODUCTS:
                return rate_flops(n_products) / max(compute_s, 1e-6)
            n_products *= 8

    async def forget(self) -> None:
        """Have the device drop what it was sent."""
        self._connection.drop(tuple(self._handles))
        self._handles.clear()

    def _handle(self) -> int:
        self._handles.append(next(self._ids))
        return self._handles[-1]

    async def _task(
        self,
        program: Program,
        inputs: Sequence[InputSpec],
        fillings: Sequence[Filling],
        outputs: Sequence[_Output],
    ) -> tuple[list[torch.Tensor], float]:
        task_id = next(self._ids)
        sinks = [torch.empty(out.n_rows, out.n_cols, dtype=DTYPES[out.dtype]) for out in outputs]
        places = [
            TaskOutput(_whole(out.n_rows, out.n_cols, out.dtype), Fate.RETURNED) for out in outputs
        ]
        task = RunTask(
            task_id=task_id,
            program=program,
            inputs=tuple(inputs),
            outputs=tuple(
                OutputSpec(Fate.RETURNED, 0, out.n_rows, out.n_cols, out.dtype) for out in outputs
            ),
            workspace_bytes=0,
            priority=0,
        )
        self._answer = asyncio.get_running_loop().create_future()
        self._connection.run_task(task, fillings, Attempt(places, sinks))
        answer = await self._answer
        self._connection.attempts.pop(task_id, None)
        if isinstance(answer, Finished):
            return sinks, answer.compute_s
        if isinstance(answer, Failed):
            raise DeviceError(answer.error)
        if isinstance(answer, Goodbye):
            raise ConnectionError(f"it left while it was tested: {answer.reason}")
        reason = getattr(answer, "reason", "")
        if isinstance(answer, Paused) or reason == "paused":
            raise NotNowError(f"it paused while it was tested: {reason}")
        raise DeviceError(f"it refuses a test task: {reason}")


def _cut(payload: memoryview, n_rows: int, n_cols: int, itemsize: int) -> Payloads:
    for piece in pieces(0, n_rows, n_cols, itemsize):
        start = (piece.row0 * n_cols + piece.col0) * itemsize
        yield piece, payload[start : start + piece.area * itemsize]


def _whole(n_rows: int, n_cols: int, dtype: DType) -> BlockRef:
    return BlockRef(Matrix(0, n_rows, n_cols, dtype), Region(0, n_rows, 0, n_cols))
