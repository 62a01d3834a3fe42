"""Who may not join is told why, and what to do about it; the server and the others go on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from tests.end_to_end import misbehaviour as bad
from tests.end_to_end.fake_agent import Answer, FakeAgent, dialled, fake_agent, finish, hello
from tests.end_to_end.good import Good, eventually, good_fleet
from tests.end_to_end.waiting import BOUND_S

from cleave.core.matrix import DType
from cleave.errors import VersionError
from cleave.server.fleet import Fleet
from cleave.wire import codec
from cleave.wire.codec import decode_from_server, encode
from cleave.wire.messages import PROTOCOL, Finished, Rejected, RunTask

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def good() -> AsyncIterator[Good]:
    async with good_fleet() as found:
        yield found


async def rejection(socket: aiohttp.ClientWebSocketResponse) -> Rejected:
    """What the server says last: why the device may not join."""
    message, _ = decode_from_server((await socket.receive(BOUND_S)).data)
    assert isinstance(message, Rejected)
    assert (await socket.receive(BOUND_S)).type is aiohttp.WSMsgType.CLOSE
    return message


async def test_a_wrong_token_is_rejected_for_good(good: Good) -> None:
    async with fake_agent(good.url, token="guessed") as device:
        await device.is_closed()
        rejected = device.rejected.result()
        assert (rejected.code, rejected.retry) == ("token", False)
        assert "copy the whole join line that the server printed" in rejected.reason
        assert not device.welcomed.done()
    assert "the join token is wrong" in good.events("rejected")[-1]
    await good.is_unharmed()


@pytest.mark.parametrize(
    ("protocol", "upgrade"),
    [
        (PROTOCOL - 1, "upgrade Cleave on the device"),
        (PROTOCOL + 1, "upgrade the server"),
        (255, "upgrade the server"),
    ],
)
async def test_another_protocol_is_told_what_to_upgrade(
    good: Good, protocol: int, upgrade: str
) -> None:
    async with dialled(good.url) as socket:
        header = b"something that only that protocol can read"
        await socket.send_bytes(
            b"CLV" + bytes((protocol,)) + len(header).to_bytes(4, "little") + header
        )
        rejected = await rejection(socket)
    assert (rejected.code, rejected.retry) == ("protocol", False)
    assert rejected.reason == (
        f"the agent speaks protocol {protocol}, this server {PROTOCOL}: {upgrade}"
    )
    await good.is_unharmed()


async def test_a_newer_agent_understands_that_the_server_is_older(
    good: Good, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dialled(good.url) as socket:
        await socket.send_bytes(b"CLV" + bytes((PROTOCOL + 1,)) + bytes(4))
        frame = (await socket.receive(BOUND_S)).data
    monkeypatch.setattr(codec, "PROTOCOL", PROTOCOL + 1)
    with pytest.raises(VersionError, match=f"the server speaks protocol {PROTOCOL}, .*: upgrade"):
        decode_from_server(frame)


async def test_what_is_no_hello_is_no_way_to_begin(good: Good) -> None:
    async with dialled(good.url) as socket:
        await socket.send_bytes(encode(Finished(1, 0.0, 0)))
        assert "expected a hello first, got Finished" in (await rejection(socket)).reason
    async with dialled(good.url) as socket:
        await socket.send_str("hello")
        assert "got text" in (await rejection(socket)).reason
    async with dialled(good.url) as socket:
        await socket.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
        assert "is the other side a Cleave" in (await rejection(socket)).reason
    async with dialled(good.url) as socket:
        await socket.send_bytes(encode(hello(good.url))[:-1])
        assert "a header of" in (await rejection(socket)).reason
    await good.is_unharmed()


async def test_a_port_scanner_harms_nobody(good: Good) -> None:
    for noise in (b"", b"\x16\x03\x01\x02\x00\x01\x00", b"GET /device HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", good.fleet.port)) as scanner:
            scanner.sendall(noise)
    async with aiohttp.ClientSession() as session:
        page = await session.get(good.fleet.join_url)
        assert f"cleave join {good.fleet.join_url}" in await page.text()
        assert (await session.get(f"http://127.0.0.1:{good.fleet.port}/join/abc")).status == 403
        assert (await session.get(f"http://127.0.0.1:{good.fleet.port}/etc")).status == 404
        assert (await session.get(f"http://127.0.0.1:{good.fleet.port}/device")).status == 400
    await good.is_unharmed()


@pytest.mark.parametrize(
    ("answer", "retry", "reason"),
    [
        (
            bad.wrong_numbers,
            False,
            r"product 37x53x29 plain plain float32: result 0 is wrong in 1961",
        ),
        (bad.fails, False, "no luck"),
        (bad.refuses("memory"), False, "it refuses a test task: memory"),
        (bad.refuses("paused"), True, "it paused while it was tested"),
        (bad.pauses, True, "it paused while it was tested: on battery, 80 %"),
        (bad.dropped_unasked, True, "was dropped unasked"),
        (bad.finished_too_soon, True, "finished with its result incomplete"),
        (bad.hello_again, True, "it said hello twice"),
    ],
)
async def test_a_device_that_does_not_pass_the_tests_is_rejected_with_the_fault_named(
    good: Good, answer: Answer, retry: bool, reason: str
) -> None:
    async with fake_agent(good.url, test_answer=answer) as device:
        await device.is_closed()
        rejected = device.rejected.result()
        assert reason in rejected.reason
        assert rejected.retry is retry
    assert good.events("rejected")[-1] == rejected.reason
    assert good.fleet.n_devices == 1
    await good.is_unharmed()


async def test_a_device_that_leaves_during_the_tests_is_not_rejected(good: Good) -> None:
    n_rejected = len(good.events("rejected"))
    async with fake_agent(good.url, test_answer=bad.leaves) as device:
        await device.is_closed()
        assert not device.rejected.done()
    assert len(good.events("rejected")) == n_rejected
    await good.is_unharmed()


async def test_a_device_is_given_only_the_types_that_it_gets_right(
    good: Good, caplog: pytest.LogCaptureFixture
) -> None:
    async def wrong_in_half(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
        half = task.outputs[0].dtype is DType.F16
        await (bad.wrong_numbers if half else finish)(agent, task, results)

    types = (DType.F32, DType.F16)
    async with fake_agent(good.url, test_answer=wrong_in_half, name="halved", dtypes=types):
        await eventually(lambda: good.fleet.n_devices == 2)
        (warning,) = [record.message for record in caplog.records if "halved" in record.message]
        assert "a type that it gets wrong: product 37x53x29 plain plain float16" in warning
        await good.is_unharmed()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"memory_bytes": 1000}, "it lends 1 kB, at least 4 MB are needed"),
        ({"ops": ("clone",)}, "the agent announces no type that can be tested"),
        ({"ops": ()}, "the agent announces no type that can be tested"),
        ({"dtypes": ()}, "the agent announces no type that can be tested"),
        ({"dtypes": (DType.I64, DType.BOOL)}, "the agent announces no type that can be tested"),
    ],
)
async def test_a_device_of_no_use_is_rejected(
    good: Good, changes: dict[str, object], reason: str
) -> None:
    async with fake_agent(good.url, **changes) as device:  # type: ignore[arg-type]
        await device.is_closed()
        assert reason in device.rejected.result().reason
    await good.is_unharmed()


async def test_no_more_devices_than_allowed_are_in_at_once() -> None:
    with Fleet("127.0.0.1", max_devices=1) as fleet:
        async with fake_agent(fleet.join_url):
            await asyncio.to_thread(fleet.wait, 1, BOUND_S)
            async with fake_agent(fleet.join_url) as second:
                await second.is_closed()
                rejected = second.rejected.result()
                assert (rejected.code, rejected.retry) == ("full", True)
                assert rejected.reason == "the server takes 1 devices at most"
        await eventually(lambda: fleet.n_devices == 0)
        async with fake_agent(fleet.join_url):
            await asyncio.to_thread(fleet.wait, 1, BOUND_S)
