"""Whatever a device sends, the server lives on, the others are unharmed and the work is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
import torch
from tests.end_to_end.fake_agent import (
    Answer,
    FakeAgent,
    dialled,
    fake_agent,
    finish,
    hello,
    send_results,
)
from tests.end_to_end.waiting import BOUND_S, until
from tests.end_to_end.works import product

from cleave.server.fleet import Fleet
from cleave.wire.codec import encode
from cleave.wire.messages import (
    Cancelled,
    Failed,
    Finished,
    Paused,
    Refused,
    ResultPiece,
    RunTask,
)

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio(loop_scope="module")]


class Good:
    """A fleet, and an honest device in it that is to outlive all the others."""

    def __init__(self, fleet: Fleet, device: FakeAgent) -> None:
        self.fleet = fleet
        self.device = device

    @property
    def url(self) -> str:
        return self.fleet.join_url

    async def rests(self) -> None:
        await self.device.pause()
        await eventually(lambda: self.fleet.devices[0].state == "paused")

    async def works(self) -> None:
        """It alone does work that others have not done, and its session is the first one still."""
        assert self.fleet.devices[0].state != "gone"
        await right_product(self.fleet)

    def last_event(self, kind: str) -> str:
        return [event.text for event in self.fleet.events if event.kind == kind][-1]


async def eventually(holds) -> None:
    await asyncio.to_thread(until, holds)


async def right_product(fleet: Fleet) -> None:
    a, b = torch.randn(64, 48), torch.randn(48, 32)
    result = await asyncio.to_thread(product(fleet, a, b).result)
    torch.testing.assert_close(result, a @ b)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def good() -> AsyncIterator[Good]:
    with Fleet("127.0.0.1", without_devices="wait") as fleet:
        async with fake_agent(fleet.join_url, name="good") as device:
            await asyncio.to_thread(fleet.wait, 1, BOUND_S)
            yield Good(fleet, device)


async def wrong_size(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    spec = task.outputs[0]
    await agent.send(ResultPiece(task.task_id, 0, 0, spec.n_rows, 0, spec.n_cols), results[0][:-4])


async def wrong_dtype(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    spec = task.outputs[0]
    half = results[0][: len(results[0]) // 2]
    await agent.send(ResultPiece(task.task_id, 0, 0, spec.n_rows, 0, spec.n_cols), half)


async def wrong_shape(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    spec = task.outputs[0]
    await agent.send(ResultPiece(task.task_id, 0, 0, spec.n_cols, 0, spec.n_rows), results[0])


async def no_such_output(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await agent.send(ResultPiece(task.task_id, 1, 0, 1, 0, 1), results[0][:4])


async def out_of_order(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    n_cols = task.outputs[0].n_cols
    await agent.send(ResultPiece(task.task_id, 0, 1, 2, 0, n_cols), results[0][: 4 * n_cols])


async def twice_the_same(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    n_cols = task.outputs[0].n_cols
    for _ in range(2):
        await agent.send(ResultPiece(task.task_id, 0, 0, 1, 0, n_cols), results[0][: 4 * n_cols])


async def unknown_task(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await agent.send(ResultPiece(task.task_id + 1000, 0, 0, 1, 0, 1), results[0][:4])


async def incomplete(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await agent.send(Finished(task.task_id, 0.001, 0))


async def finished_unknown(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await agent.send(Finished(task.task_id + 1000, 0.001, 0))


async def finished_twice(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await finish(agent, task, results)
    await agent.send(Finished(task.task_id, 0.001, 0))


async def cancelled_unasked(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await agent.send(Cancelled(task.task_id))


async def hello_twice(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await agent.send(hello("http://h:1/join/t"))


async def text(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await agent.socket.send_str("finished")


async def huge(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await agent.socket.send_bytes(bytes(18 << 20))


async def cut_short(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await agent.socket.send_bytes(encode(Finished(task.task_id, 0.001, 0))[:-3])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (wrong_size, "carries 8188 bytes, expected 8192"),
        (wrong_dtype, "carries 4096 bytes, expected 8192"),
        (wrong_shape, "of a block of 64 x 32: expected whole rows of it"),
        (no_such_output, "returns no output 1"),
        (out_of_order, "does not follow on row 0, column 0"),
        (twice_the_same, "does not follow on row 1, column 0"),
        (unknown_task, "which it does not have"),
        (incomplete, "finished with its result incomplete"),
        (finished_unknown, "which it does not have"),
        (finished_twice, "which it does not have"),
        (cancelled_unasked, "dropped unasked"),
        (hello_twice, "hello"),
        (text, "expected binary frames, got text"),
        (huge, "exceeds"),
        (cut_short, "a header of"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_device_that_breaks_the_protocol_is_closed_and_another_does_its_work(
    good: Good, answer: Answer, reason: str
) -> None:
    await good.rests()
    async with fake_agent(good.url, answer, name=answer.__name__) as bad:
        await eventually(lambda: good.fleet.n_devices == 2)
        a, b = torch.randn(64, 48), torch.randn(48, 32)
        under_way = product(good.fleet, a, b)
        await bad.is_closed()
        await good.device.resume()
        result = await asyncio.to_thread(under_way.result, 5)
        torch.testing.assert_close(result, a @ b)
        assert bad.n_tasks >= 1
    print([e.text for e in good.fleet.events if e.name == answer.__name__])
    print(bad.rejected)
    left = [event for event in good.fleet.events if event.kind == "left"][-1]
    assert left.name == answer.__name__
    assert reason in left.text
    assert good.fleet.devices[0].state != "gone"
