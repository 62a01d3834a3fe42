"""An agent against a real socket: tasks in, results out, and every way in which one may not run."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
from tests.agent.gated import BOUND_S, GatedBackend
from tests.agent.lending import Lending, lending
from tests.agent.stub_server import Device, StubServer, serving
from tests.agent.tasks import UNKNOWN, added, block, gemm, kept, rows

from cleave.compute.backend import Array
from cleave.compute.numpy_backend import NumpyBackend
from cleave.core.program import Program
from cleave.errors import DeviceMemoryError
from cleave.wire.messages import (
    Cancel,
    Cancelled,
    Drop,
    Failed,
    Finished,
    Goodbye,
    Piece,
    Refused,
    ResultPiece,
)

A, B = block(1, 4, 3), block(2, 3, 5)
LEFT = np.arange(12, dtype=np.float32).reshape(4, 3)
RIGHT = np.arange(15, dtype=np.float32).reshape(3, 5)
PRODUCT = LEFT @ RIGHT


@pytest.fixture
async def server() -> AsyncIterator[StubServer]:
    async with serving(StubServer()) as server:
        yield server


@pytest.fixture
async def lent(server: StubServer) -> AsyncIterator[Lending]:
    async with lending(server.address) as lent:
        yield lent


@pytest.fixture
async def device(server: StubServer, lent: Lending) -> Device:
    return await server.device()


async def send_both(device: Device) -> None:
    await device.fill(1, LEFT, 0, 4)
    await device.fill(2, RIGHT, 0, 3)


async def running(gated: GatedBackend) -> None:
    assert await asyncio.to_thread(gated.started.acquire, timeout=BOUND_S)


async def test_an_agent_says_who_it_is(device: Device) -> None:
    hello = device.hello
    assert (hello.token, hello.name, hello.backend) == ("t", "laptop", "numpy")
    assert hello.memory_bytes == 1 << 20
    assert "mm" in hello.ops


async def test_a_task_in_many_pieces_comes_back_as_the_product(device: Device) -> None:
    task = gemm(1, A, B)
    await device.send(task)
    await send_both(device)
    np.testing.assert_array_equal(await device.result(task), PRODUCT)


async def test_strips_share_a_block_and_each_needs_only_its_own_rows(device: Device) -> None:
    first, second = gemm(1, rows(A, 0, 2, resident_rows=0), B), gemm(
        2, rows(A, 2, 4, resident_rows=2), block(2, 3, 5, resident_rows=3)
    )  # fmt: skip
    await device.send(first)
    await device.fill(1, LEFT, 0, 2)
    await device.fill(2, RIGHT, 0, 3)
    np.testing.assert_array_equal(await device.result(first), PRODUCT[:2])
    await device.send(second)
    await device.fill(1, LEFT, 2, 4)
    np.testing.assert_array_equal(await device.result(second), PRODUCT[2:])


async def test_a_resident_block_is_used_without_being_sent(device: Device) -> None:
    await device.send(gemm(1, A, B))
    await send_both(device)
    await device.result(gemm(1, A, B))
    again = gemm(2, rows(A, 1, 3, resident_rows=3), block(2, 3, 5, resident_rows=3))
    await device.send(again)
    np.testing.assert_array_equal(await device.result(again), PRODUCT[1:3])


async def test_kept_and_added_outputs_are_inputs_of_later_tasks(device: Device) -> None:
    eye = np.eye(5, dtype=np.float32)
    b = block(2, 3, 5, resident_rows=0)
    await device.send(gemm(1, A, b, kept(3, 4, 5)))
    await send_both(device)
    full = (block(1, 4, 3, resident_rows=4), block(2, 3, 5, resident_rows=3))
    for task_id in (2, 3):
        await device.send(gemm(task_id, *full, added(4, 4, 5)))
    from_kept = gemm(4, block(3, 4, 5, resident_rows=4), block(5, 5, 5))
    from_sum = gemm(5, block(4, 4, 5, resident_rows=4), block(5, 5, 5, resident_rows=5))
    await device.send(from_kept)
    await device.fill(5, eye, 0, 5)
    await device.send(from_sum)
    for task_id in (1, 2, 3):
        assert (await device.hear(Finished)).task_id == task_id
    np.testing.assert_array_equal(await device.result(from_kept), PRODUCT)
    np.testing.assert_array_equal(await device.result(from_sum), 2 * PRODUCT)


async def test_a_dropped_block_frees_its_memory_and_is_missing_afterwards(device: Device) -> None:
    await device.send(gemm(1, A, B))
    await send_both(device)
    await device.result(gemm(1, A, B))
    await device.send(Drop((1,)))
    await device.send(gemm(2, block(1, 4, 3, resident_rows=4), block(2, 3, 5, resident_rows=3)))
    assert await device.hear(Refused) == Refused(2, "missing", (1,))
    await device.send(gemm(3, A, block(2, 3, 5, resident_rows=3), kept(3, 4, 5)))
    await device.fill(1, LEFT, 0, 4)
    finished = await device.hear(Finished)
    assert finished.held_bytes == 48 + 60 + 80


async def test_too_large_a_task_is_refused_and_its_pieces_are_ignored(device: Device) -> None:
    big = gemm(1, A, B, workspace_bytes=1 << 20)
    await device.send(big)
    await send_both(device)
    assert await device.hear(Refused) == Refused(1, "memory", (1, 2), 48 + 60 + 80 + (1 << 20))
    small = gemm(2, A, B)
    await device.send(small)
    await send_both(device)
    np.testing.assert_array_equal(await device.result(small), PRODUCT)


async def test_an_op_that_it_does_not_have_fails_and_the_next_task_runs(device: Device) -> None:
    await device.send(gemm(1, A, B, program=UNKNOWN))
    await send_both(device)
    failed = await device.hear(Failed)
    assert failed.task_id == 1
    assert "launch" in failed.error
    full = gemm(2, block(1, 4, 3, resident_rows=4), block(2, 3, 5, resident_rows=3))
    await device.send(full)
    np.testing.assert_array_equal(await device.result(full), PRODUCT)


class FullBackend(NumpyBackend):
    """Numpy on a machine that has run out of memory."""

    def run(self, program: Program, inputs: Sequence[Array]) -> list[Array]:
        raise DeviceMemoryError(needed_bytes=5, budget_bytes=3)


async def test_a_device_that_runs_out_of_memory_refuses(server: StubServer) -> None:
    async with lending(server.address, FullBackend()):
        device = await server.device()
        await device.send(gemm(1, A, B))
        await send_both(device)
        assert await device.hear(Refused) == Refused(1, "memory", (), 5)


async def test_a_waiting_task_is_cancelled(device: Device) -> None:
    await device.send(gemm(1, A, B))
    await device.send(Cancel((1, 99)))
    assert await device.hear(Cancelled) == Cancelled(1)
    await send_both(device)
    again = gemm(2, block(1, 4, 3, resident_rows=4), block(2, 3, 5, resident_rows=3))
    await device.send(again)
    np.testing.assert_array_equal(await device.result(again), PRODUCT)


async def test_a_running_and_a_queued_task_are_cancelled(server: StubServer) -> None:
    gated = GatedBackend()
    async with lending(server.address, gated):
        device = await server.device()
        await device.send(gemm(1, A, B))
        await send_both(device)
        full = (block(1, 4, 3, resident_rows=4), block(2, 3, 5, resident_rows=3))
        await running(gated)
        await device.send(gemm(2, *full))
        await device.send(Cancel((2, 1)))
        assert await device.hear(Cancelled) == Cancelled(2)
        gated.permits.release(3)
        assert await device.hear(Cancelled) == Cancelled(1)
        third = gemm(3, *full)
        await device.send(third)
        np.testing.assert_array_equal(await device.result(third), PRODUCT)


async def test_large_rows_and_results_travel_in_pieces_of_a_megabyte(server: StubServer) -> None:
    async with lending(server.address, memory_bytes=1 << 26):
        device = await server.device()
        ones, wide = np.ones((1, 1), np.float32), np.ones((1, 300_000), np.float32)
        task = gemm(1, block(1, 1, 1), block(2, 1, 300_000))
        await device.send(task)
        await device.fill(1, ones, 0, 1)
        for col0 in range(0, 300_000, 150_000):
            await device.fill_columns(2, wide, col0, col0 + 150_000)
        first, payload = await device.next()
        assert first == ResultPiece(1, 0, 0, 1, 0, 1 << 18)
        assert len(payload) == 1 << 20
        second, payload = await device.next()
        assert second == ResultPiece(1, 0, 0, 1, 1 << 18, 300_000)
        assert (await device.hear(Finished)).task_id == 1


async def test_a_result_on_its_way_is_cut_short_when_cancelled(server: StubServer) -> None:
    n_cols = 25_000  # 100 kB at 200 kB/s in pieces of 50 kB: the second waits for 0.25 s
    async with lending(server.address, limit_up_bytes_per_s=2e5):
        device = await server.device()
        await device.send(gemm(1, block(1, 1, 1), block(2, 1, n_cols)))
        ones = np.ones((1, n_cols), np.float32)
        await device.fill(1, ones[:, :1], 0, 1)
        await device.fill_columns(2, ones, 0, n_cols)
        assert await device.hear(ResultPiece) == ResultPiece(1, 0, 0, 1, 0, 12_500)
        await device.send(Cancel((1,)))
        message: object = await device.hear(ResultPiece)  # the piece that was waiting already
        assert message == ResultPiece(1, 0, 0, 1, 12_500, n_cols)
        assert await device.hear(Cancelled) == Cancelled(1)


async def test_a_broken_rule_ends_the_connection_and_a_fresh_one_follows(
    server: StubServer, lent: Lending, device: Device
) -> None:
    await device.send(gemm(1, A, B))
    part = LEFT[2:3].copy()
    await device.send(Piece(1, 2, 3, 0, 3), part.data.cast("B"))
    await device.gone()
    again = await server.device()
    task = gemm(1, A, B)
    await again.send(task)
    await send_both(again)
    np.testing.assert_array_equal(await again.result(task), PRODUCT)
    assert "does not follow" in await lent.shown.shows("piece [2:3, 0:3]")


async def test_it_says_goodbye_when_it_is_stopped(lent: Lending, device: Device) -> None:
    lent.agent.stop("stopped by its owner")
    assert await device.hear(Goodbye) == Goodbye("stopped by its owner")
