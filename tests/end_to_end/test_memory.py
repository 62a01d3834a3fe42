"""Hundreds of things that went wrong leave no memory behind on the server."""

from __future__ import annotations

import asyncio
import gc
import logging

import psutil
import pytest
import torch
from tests.end_to_end.fake_agent import Answer, FakeAgent, dialled, fake_agent, hello
from tests.end_to_end.waiting import BOUND_S
from tests.end_to_end.works import product

from cleave.core.scheduling.settings import SchedulerSettings
from cleave.server.fleet import Fleet
from cleave.wire.codec import decode_from_server, encode
from cleave.wire.messages import Failed, Refused, RunTask, Welcome

pytestmark = pytest.mark.timeout(120)

N_JOINS = 600
N_TASKS = 300
WARM_UP = 100
# One object kept each time would be at least 200 of them.
FEW_OBJECTS = 150
FEW_BYTES = 16 << 20


@pytest.fixture(autouse=True)
def _keeps_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "cleave")


class Footprint:
    """What this process holds: Python's objects and the machine's memory."""

    def __init__(self) -> None:
        gc.collect()
        self.n_objects = len(gc.get_objects())
        self.n_bytes = psutil.Process().memory_info().rss

    def must_not_have_grown(self) -> None:
        now = Footprint()
        assert now.n_objects - self.n_objects < FEW_OBJECTS
        assert now.n_bytes - self.n_bytes < FEW_BYTES


async def test_devices_that_join_and_vanish_are_forgotten() -> None:
    with Fleet("127.0.0.1") as fleet:
        for i in range(N_JOINS):
            if i == WARM_UP:
                before = Footprint()
            async with dialled(fleet.join_url) as socket:
                await socket.send_bytes(encode(hello(fleet.join_url)))
                message, _ = decode_from_server(await socket.receive_bytes())
                assert isinstance(message, Welcome)
        before.must_not_have_grown()
        assert fleet.devices == []


async def fail(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await agent.send(Failed(task.task_id, "as told"))


async def refuse(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await agent.send(Refused(task.task_id, "memory"))


@pytest.mark.parametrize("answer", [fail, refuse])
async def test_tasks_that_come_to_nothing_are_forgotten(answer: Answer) -> None:
    settings = SchedulerSettings(grace_s=0.0, rest_s=0.0, max_failures_in_row=2 * N_TASKS)
    a = torch.ones(256, 64)
    with Fleet("127.0.0.1", settings=settings) as fleet:
        async with fake_agent(fleet.join_url, answer) as agent:
            await asyncio.to_thread(fleet.wait, 1, BOUND_S)
            n_tried = 0
            for i in range(N_TASKS):
                if i == WARM_UP:
                    before = Footprint()
                under_way = product(fleet, a, a.T.contiguous())
                assert (await asyncio.to_thread(under_way.result))[0, 0] == 64.0
                n_tried += len(agent.tasks)
                agent.tasks.clear()
            before.must_not_have_grown()
        assert n_tried >= N_TASKS
        stats = fleet.stats()
    assert stats.matrices == 0
    assert stats.device_flops == 0
