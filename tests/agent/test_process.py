"""The agent as a process: it leaves on signals and with its parent, whatever its thread does."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest
from tests.agent.stub_server import BOUND_S, Device, StubServer, serving
from tests.agent.tasks import block, gemm, returned

from cleave.agent.process import Parent
from cleave.core.program import Op, Program, Ref
from cleave.wire.messages import Goodbye, Paused, Piece, Refused, Resumed, RunTask

AGENT = """
import sys
from cleave.agent.app import run_agent
from cleave.agent.config import AgentConfig
from cleave.wire.join import JoinAddress

sys.exit(run_agent(AgentConfig(
    address=JoinAddress.parse(sys.argv[1]),
    backend="numpy",
    threads=1,
    memory_bytes=1 << 30,
    resume_after_s=0.0,
    parent_pid=int(sys.argv[2]) or None,
)))
"""
posix = pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")


@asynccontextmanager
async def agent_process(
    server: StubServer, parent_pid: int = 0
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, server.address.url, str(parent_pid), stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def start_a_long_task(device: Device) -> None:
    """A chain of products that takes minutes."""
    n = 512
    ops = tuple(Op("mm", (Ref(i), Ref(0))) for i in range(10_000))
    chain = Program(n_inputs=1, ops=ops, outputs=(len(ops),))
    task = RunTask(
        task_id=1,
        program=chain,
        inputs=(block(1, n, n),),
        outputs=(returned(n, n),),
        workspace_bytes=0,
        priority=0,
    )
    await device.send(task)
    await device.send(Piece(1, 0, n, 0, n), bytes(4 * n * n))
    await device.send(gemm(2, block(9, 1, 1, resident_rows=1), block(9, 1, 1, resident_rows=1)))
    assert await device.hear(Refused) == Refused(2, "missing", (9,))  # so it got past the first


async def exit_code(process: asyncio.subprocess.Process, within_s: float = BOUND_S) -> int:
    return await asyncio.wait_for(process.wait(), within_s)


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_has_it_leave_politely(number: signal.Signals) -> None:
    async with serving(StubServer()) as server, agent_process(server) as process:
        device = await server.device()
        process.send_signal(number)
        assert (await device.hear(Goodbye)).reason.startswith("stopped")
        assert await exit_code(process) == 0


@posix
async def test_a_running_task_does_not_keep_it() -> None:
    async with serving(StubServer()) as server, agent_process(server) as process:
        device = await server.device()
        await start_a_long_task(device)
        process.send_signal(signal.SIGINT)
        await device.hear(Goodbye)
        assert await exit_code(process, within_s=2.0) == 0  # a second, and one for a busy machine


@posix
async def test_signals_pause_and_resume_it() -> None:
    async with serving(StubServer()) as server, agent_process(server) as process:
        device = await server.device()
        await start_a_long_task(device)
        process.send_signal(signal.SIGUSR1)
        assert await device.hear(Paused) == Paused("asked by the owner with a signal")
        process.send_signal(signal.SIGUSR2)
        await device.hear(Resumed)


async def test_every_other_program_comes_first() -> None:
    async with serving(StubServer()) as server, agent_process(server) as process:
        await server.device()
        nice = psutil.Process(process.pid).nice()
        assert nice == (psutil.IDLE_PRIORITY_CLASS if sys.platform == "win32" else 19)


async def test_it_leaves_when_the_process_that_started_it_is_gone() -> None:
    starter = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "input()", stdin=subprocess.PIPE
    )
    async with serving(StubServer()) as server, agent_process(server, starter.pid) as process:
        device = await server.device()
        starter.kill()
        await starter.communicate()
        assert (await device.hear(Goodbye)).reason == "the process that started it is gone"
        assert await exit_code(process) == 0


async def test_memory_goes_back_to_the_machine_when_the_server_is_lost() -> None:
    lent_bytes, column_bytes = 200 << 20, 1 << 20
    async with serving(StubServer()) as server, agent_process(server) as process:
        device = await server.device()
        memory = psutil.Process(process.pid).memory_info
        before_bytes = memory().rss
        n_rows, n_cols = lent_bytes // column_bytes, column_bytes // 4
        await device.send(gemm(1, block(1, n_rows, n_cols), block(2, 1, 1)))
        for row in range(n_rows):
            await device.send(Piece(1, row, row + 1, 0, n_cols), bytes(column_bytes))
        await device.send(gemm(2, block(9, 1, 1, resident_rows=1), block(9, 1, 1)))
        await device.hear(Refused)
        assert memory().rss - before_bytes > 0.9 * lent_bytes
        await device.socket.close()
        await server.device()
        assert memory().rss - before_bytes < 0.2 * lent_bytes


def test_a_living_parent_is_not_gone_and_one_that_never_was_is() -> None:
    assert not Parent(psutil.Process().ppid()).is_gone
    assert Parent(2**22 + 1).is_gone
