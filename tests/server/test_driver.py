"""The driver: what it keeps between the scheduler and the world."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import replace
from typing import cast

import pytest
import torch
from aiohttp import web
from tests.end_to_end.works import Chain

from cleave.compute.choose import load_backend
from cleave.core.device import DeviceProfile
from cleave.core.matrix import DType, Matrix
from cleave.core.operations import Gemm
from cleave.core.program import Op, Program, Ref
from cleave.core.scheduling.events import Command
from cleave.core.scheduling.scheduler import Scheduler
from cleave.core.work import Work
from cleave.errors import WorkFailedError
from cleave.server.connection import Connection
from cleave.server.driver import Driver, Outcome
from cleave.server.operands import OperandStore
from cleave.wire.messages import AgentMessage


class Deaf:
    """Listens to no device."""

    def heard(self, connection: Connection, message: AgentMessage) -> None:
        raise AssertionError


class Alone:
    """A driver without devices: its host does everything."""

    def __init__(self) -> None:
        self.store = OperandStore()
        self.driver = Driver(Scheduler(), self.store, load_backend("torch", device="cpu"))
        self._n_works = 0

    def matrix(self, n_rows: int, n_cols: int) -> Matrix:
        return self.store.adopt(torch.ones(n_rows, n_cols))

    def product(self, m: int, n: int, k: int) -> tuple[Work, Matrix]:
        out = self.matrix(m, n)
        gemm = Gemm(name="product", a=self.matrix(m, k), b=self.matrix(k, n), out=out)
        return gemm.forms()[0], out

    def joins(self, profile: DeviceProfile) -> None:
        """A device that will never be sent anything comes in."""
        nowhere = cast("web.WebSocketResponse", None)
        self.driver.joined(Connection(nowhere, profile.device_id, Deaf()), profile)

    async def do(self, work: Work) -> Outcome:
        self._n_works += 1
        future: Future[Outcome] = Future()
        self.driver.submit(self._n_works, (work,), (), future)
        outcome = await asyncio.wait_for(asyncio.wrap_future(future), 20)
        outcome.results.finish()
        return outcome


@pytest.fixture
async def alone() -> AsyncIterator[Alone]:
    found = Alone()
    yield found
    found.driver.close()


async def test_the_host_does_what_no_device_can_and_counts_it(alone: Alone) -> None:
    work, out = alone.product(5, 3, 7)
    outcome = await alone.do(work)
    assert alone.store.tensor(out).equal(torch.full((5, 3), 7.0))
    assert outcome.layout == ()
    assert (alone.driver.host_tally.tasks, alone.driver.host_tally.flops) == (1, 2 * 5 * 3 * 7)


async def test_partial_sums_of_slabs_are_added_up(alone: Alone) -> None:
    a, b = torch.randn(5, 50), torch.randn(50, 3)
    left, right, out = alone.store.adopt(a), alone.store.adopt(b), alone.matrix(5, 3)
    gemm = Gemm(name="product", a=left, b=right, out=out)
    results = []
    for _ in range(2):
        await alone.do(gemm.forms()[0].in_slabs(4))
        results.append(alone.store.tensor(out).clone())
    torch.testing.assert_close(results[0], a @ b)
    assert results[0].equal(results[1])
    assert alone.driver.host_tally.flops == 2 * gemm.flops


async def test_newcomers_are_tested_with_the_largest_of_each_size_of_a_product(
    alone: Alone,
) -> None:
    await alone.do(alone.product(5, 3, 7)[0])
    await alone.do(alone.product(2, 9, 4)[0])
    assert alone.driver.largest == (5, 9, 7)


async def test_a_program_of_many_products_has_no_size_to_test_with(alone: Alone) -> None:
    chain = Chain(n_rows=4, n_turns=100, size=8)
    await alone.do(chain.work(alone.matrix(4, 8), alone.matrix(8, 8), alone.matrix(4, 8)))
    assert alone.driver.largest == (1, 1, 1)


async def test_people_hear_once_that_no_device_here_can_do_a_kind_of_work(
    alone: Alone, caplog: pytest.LogCaptureFixture
) -> None:
    alone.joins(DeviceProfile(device_id=1, flops_per_s={DType.BF16: 1e9}))
    for _ in range(2):
        await alone.do(alone.product(5, 3, 7)[0])
    assert caplog.messages == ["no device here can do product in float32 (mm): the host does it"]


@pytest.mark.parametrize("door", ["handle", "next_deadline_s"])
async def test_a_fault_of_the_scheduler_fails_who_waits_and_all_work_after_it(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, door: str
) -> None:
    def stumble(*_: object) -> list[Command]:
        raise RuntimeError("out of order")

    monkeypatch.setattr(alone.driver.scheduler, door, stumble)
    with pytest.raises(WorkFailedError) as caught:
        await alone.do(alone.product(5, 3, 7)[0])
    monkeypatch.undo()
    assert str(caught.value).startswith("the scheduler failed: RuntimeError('out of order')")
    assert "the scheduler failed" in caplog.text
    with pytest.raises(WorkFailedError, match=r"out of order.*close this fleet and open another"):
        await alone.do(alone.product(5, 3, 7)[0])


async def test_what_the_host_cannot_do_either_fails_with_its_reason(alone: Alone) -> None:
    work, _ = alone.product(5, 3, 7)
    unknown = Program(n_inputs=2, ops=(Op("hash", (Ref(0), Ref(1))),), outputs=(2,))
    with pytest.raises(WorkFailedError, match="ProgramError: op 0 is 'hash', which is not among"):
        await alone.do(replace(work, program=unknown))
    await alone.do(work)
