"""The port: those who say nothing, or do nothing when tested, are not waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.end_to_end import misbehaviour as bad
from tests.end_to_end.fake_agent import dialled, fake_agent
from tests.end_to_end.waiting import BOUND_S

from cleave.core.scheduling.scheduler import Scheduler
from cleave.server.app import AppSettings
from cleave.server.operands import OperandStore
from cleave.server.thread import ServerThread
from cleave.wire.codec import decode_from_server
from cleave.wire.messages import Rejected

pytestmark = pytest.mark.timeout(60)


class Heard:
    """A server that does not wait for long, and what it says of devices."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        settings = AppSettings(
            host="127.0.0.1",
            port=0,
            token="t",
            heartbeat_s=10.0,
            max_devices=10,
            hello_timeout_s=0.1,
            admission_timeout_s=0.3,
        )
        self.server = ServerThread(
            settings,
            Scheduler(),
            OperandStore(),
            lambda kind, _connection, text: self.events.append((kind, text)),
        )
        self.join_url = f"http://127.0.0.1:{self.server.app.port}/join/t"

    def close(self) -> None:
        self.server.close()


@pytest.fixture
def impatient() -> Iterator[Heard]:
    with closing(Heard()) as heard:
        yield heard


async def test_silence_instead_of_a_hello_is_not_waited_for(impatient: Heard) -> None:
    async with dialled(impatient.join_url) as socket:
        message, _ = decode_from_server((await socket.receive(BOUND_S)).data)
    assert message == Rejected("protocol", "it said no hello within 0.1 s", retry=True)
    assert impatient.events == [("rejected", "it said no hello within 0.1 s")]


async def test_silence_instead_of_test_results_is_not_waited_for(impatient: Heard) -> None:
    async with fake_agent(impatient.join_url, test_answer=bad.is_silent) as device:
        await device.is_closed()
        expected = Rejected("selftest", "the tests were not done within 0.3 s", retry=True)
        assert device.rejected.result() == expected
    assert impatient.events == [("rejected", "the tests were not done within 0.3 s")]
