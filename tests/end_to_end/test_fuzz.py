"""Random bytes and random messages over a real socket: nobody but their sender is harmed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.end_to_end.fake_agent import FakeAgent, dialled, fake_agent, hello
from tests.end_to_end.good import Good, Work, eventually, good_fleet

from cleave.wire.codec import encode
from cleave.wire.messages import (
    AgentMessage,
    Cancelled,
    Failed,
    Finished,
    Goodbye,
    Paused,
    Refused,
    ResultPiece,
    Resumed,
    RunTask,
)

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]

few = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

frames = [
    encode(hello("http://host:1/join/token")),
    encode(Finished(7, 0.5, 0)),
    encode(Refused(7, "missing", (1, 2, 3), 0)),
    encode(ResultPiece(7, 0, 0, 1, 0, 4), bytes(16)),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A frame of which a part is cut out, doubled or overwritten."""
    frame = draw(st.sampled_from(frames))
    begin = draw(st.integers(0, len(frame)))
    end = draw(st.integers(begin, len(frame)))
    middle = draw(st.one_of(st.binary(max_size=16), st.just(frame[begin:end] * 2)))
    return frame[:begin] + middle + frame[end:]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def good() -> AsyncIterator[Good]:
    async with good_fleet() as found:
        yield found


@few
@given(frame=st.one_of(st.binary(max_size=200), damaged()))
async def test_any_bytes_may_come_first(good: Good, frame: bytes) -> None:
    async with dialled(good.url) as socket:
        await socket.send_bytes(frame)
        async for _ in socket:
            pass  # whatever it says, it closes
    await good.is_unharmed()


@few
@given(frame=st.one_of(st.binary(max_size=200), damaged()))
async def test_any_bytes_may_come_from_a_device_that_is_tested(good: Good, frame: bytes) -> None:
    async def answer(agent: FakeAgent, _task: RunTask, _results: list[bytes]) -> None:
        await agent.socket.send_bytes(frame)

    async with fake_agent(good.url, test_answer=answer) as device:
        await device.is_closed()
    await good.is_unharmed()


def messages() -> st.SearchStrategy[AgentMessage]:
    """What a device could say; ids of tasks are counted from that of the task it has."""
    task_ids = st.sampled_from([0, 0, 0, 1, 2**40])
    numbers = st.sampled_from([0, 1, 2, 99, 2**53 - 1])
    seconds = st.sampled_from([0.0, 1e-300, 1e9])
    texts = st.sampled_from(["memory", "missing", "paused", ""])
    handles = st.lists(numbers, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Finished, task_ids, seconds, numbers),
        st.builds(Failed, task_ids, texts),
        st.builds(Refused, task_ids, texts, handles, numbers),
        st.builds(Cancelled, task_ids),
        st.builds(Paused, texts),
        st.builds(Resumed),
        st.builds(Goodbye, texts),
    )


def about(task: RunTask, message: AgentMessage) -> AgentMessage:
    """The message with the id of the task."""
    if isinstance(message, (Finished, Failed, Refused, Cancelled)):
        return structs.replace(message, task_id=task.task_id + message.task_id)
    return message


@few
@given(said=st.lists(messages(), min_size=1, max_size=5))
async def test_any_messages_may_come_from_a_device_that_works(
    good: Good, said: list[AgentMessage]
) -> None:
    async def answer(agent: FakeAgent, task: RunTask, _results: list[bytes]) -> None:
        for message in said:
            await agent.send(about(task, message))

    await good.rests()
    async with fake_agent(good.url, answer) as device:
        await eventually(lambda: good.fleet.n_devices == 2)
        work = Work(good.fleet)
        await eventually(lambda: device.tasks)
        await good.does(work)
    await eventually(lambda: good.fleet.n_devices == 1)
    await good.is_unharmed()
