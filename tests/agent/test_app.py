"""An agent's life: it comes back by itself, leaves politely, and puts its owner first."""

import asyncio
import socket

import numpy as np
import pytest
from tests.agent.gated import BOUND_S, GatedBackend
from tests.agent.lending import Lending, lending
from tests.agent.stub_server import Device, StubServer, serving
from tests.agent.tasks import block, gemm

from cleave.agent import app
from cleave.agent.app import LEFT, LOST, REJECTED
from cleave.agent.limits import Readings
from cleave.wire.codec import encode
from cleave.wire.join import JoinAddress
from cleave.wire.messages import Goodbye, Paused, Refused, Rejected, Resumed, Welcome

A, B = block(1, 4, 3), block(2, 3, 5)
LEFT_BLOCK = np.ones((4, 3), np.float32)
RIGHT_BLOCK = np.ones((3, 5), np.float32)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "PAUSE_POLL_S", 0.05)


async def works(device: Device) -> None:
    task = gemm(1, A, B)
    await device.send(task)
    await device.fill(1, LEFT_BLOCK, 0, 4)
    await device.fill(2, RIGHT_BLOCK, 0, 3)
    np.testing.assert_array_equal(await device.result(task), LEFT_BLOCK @ RIGHT_BLOCK)


async def test_it_returns_with_an_empty_store_when_the_server_restarts() -> None:
    async with serving(StubServer()) as server, lending(server.address) as lent:
        await works(await server.device())
        await server.stop()
        await lent.shown.shows("trying again")
        await server.start()
        await works(await server.device())  # the same handles, filled from the first row


async def test_it_returns_after_a_goodbye() -> None:
    async with serving(StubServer()) as server, lending(server.address) as lent:
        await (await server.device()).send(Goodbye("the run is over"))
        await works(await server.device())
        assert "the server left: the run is over" in await lent.shown.shows("trying again")


async def test_a_silent_server_is_left_and_dialled_again() -> None:
    async with serving(StubServer(heartbeat_s=0.05)) as server, lending(server.address):
        first = await server.device()
        first.is_deaf = True
        await works(await server.device())


async def test_its_own_pings_keep_a_quiet_connection() -> None:
    async with serving(StubServer(heartbeat_s=0.05)) as server, lending(server.address):
        device = await server.device()
        for _ in range(8):  # longer than the allowed silence
            await asyncio.wait_for(server.pings.get(), BOUND_S)
        await works(device)


async def test_after_a_sleep_it_starts_a_new_session() -> None:
    async with serving(StubServer(heartbeat_s=0.05)) as server, lending(server.address) as lent:
        first = await server.device()
        await asyncio.wait_for(server.pings.get(), BOUND_S)
        lent.wall_now_s += 60.0
        await first.gone()
        await works(await server.device())
        await lent.shown.shows("this machine stood still for 60 s; trying again")


async def test_a_wrong_token_ends_it_with_what_to_do() -> None:
    refusal = Rejected("token", "the join token is wrong: copy the whole line", retry=False)
    async with serving(StubServer(refusal)) as server:
        lent = Lending(server.address, None)
        assert await lent.ends() == REJECTED
        assert "copy the whole line" in lent.shown.states[-1]


async def test_a_full_server_is_tried_again() -> None:
    full = Rejected("full", "full for now", retry=True)
    async with serving(StubServer(full)) as server, lending(server.address) as lent:
        await server.device()
        server.reply = Welcome(2, "0", 5.0)
        await lent.shown.shows("serving")
        assert "full for now; trying again" in lent.shown.states[0]


async def test_a_newer_server_ends_it_with_how_to_upgrade() -> None:
    frame = encode(Goodbye("x"))
    async with serving(StubServer(frame[:3] + b"\x63" + frame[4:])) as server:
        lent = Lending(server.address, None)
        assert await lent.ends() == REJECTED
        assert "upgrade Cleave on this device" in lent.shown.states[-1]


async def test_random_bytes_from_a_server_are_survived() -> None:
    async with serving(StubServer(b"\0" * 100)) as server, lending(server.address) as lent:
        await lent.shown.shows("does not begin as Cleave's do")
        server.reply = Welcome(2, "0", 5.0)
        await lent.shown.shows("serving")


async def test_with_once_the_first_failure_ends_it() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = JoinAddress(host="127.0.0.1", port=unused.getsockname()[1], token="t")
        lent = Lending(address, None, retry=False)
        assert await lent.ends() == LOST
    (state,) = lent.shown.states
    assert state.startswith("TCP: 127.0.0.1:")
    assert "refuses the connection" in state


async def test_it_leaves_within_a_second_while_a_task_computes() -> None:
    gated = GatedBackend()
    async with serving(StubServer()) as server:
        lent = Lending(server.address, gated)
        running = asyncio.create_task(lent.agent.run())
        device = await server.device()
        await start_a_task(device, gated)
        lent.agent.stop("stopped by its owner")
        assert await asyncio.wait_for(running, 1.0) == LEFT
        assert lent.agent.is_computing
        assert await device.hear(Goodbye) == Goodbye("stopped by its owner")
        gated.permits.release()


async def test_after_its_goodbye_it_listens_until_the_server_hangs_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "GOODBYE_TIMEOUT_S", BOUND_S)
    async with serving(StubServer()) as server:
        lent = Lending(server.address, None)
        running = asyncio.create_task(lent.agent.run())
        device = await server.device()
        lent.agent.stop("stopped by its owner")
        assert await device.hear(Goodbye) == Goodbye("stopped by its owner")
        await works(device)
        await device.socket.close()
        assert await asyncio.wait_for(running, BOUND_S) == LEFT
        assert lent.shown.states[-1] == "left: stopped by its owner"
        assert not [state for state in lent.shown.states if "trying again" in state]


async def test_it_stops_at_once_while_it_dials() -> None:
    with socket.socket() as silent:  # accepts, and never answers the handshake
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = JoinAddress(host="127.0.0.1", port=silent.getsockname()[1], token="t")
        lent = Lending(address, None)
        running = asyncio.create_task(lent.agent.run())
        connection, _ = await asyncio.to_thread(silent.accept)
        with connection:
            lent.agent.stop("enough")
            assert await asyncio.wait_for(running, 1.0) == LEFT


async def start_a_task(device: Device, gated: GatedBackend) -> None:
    await device.send(gemm(1, A, B))
    await device.fill(1, LEFT_BLOCK, 0, 4)
    await device.fill(2, RIGHT_BLOCK, 0, 3)
    assert await asyncio.to_thread(gated.started.acquire, timeout=BOUND_S)


async def test_on_battery_it_gives_its_tasks_back_and_resumes_on_power() -> None:
    gated = GatedBackend()
    async with (
        serving(StubServer()) as server,
        lending(server.address, gated, resume_after_s=0.0) as lent,
    ):
        device = await server.device()
        await start_a_task(device, gated)
        queued = gemm(4, block(1, 4, 3, resident_rows=4), block(2, 3, 5, resident_rows=3))
        await device.send(queued)
        await device.send(gemm(5, block(8, 4, 3), block(9, 3, 5)))  # waits for its rows
        lent.sensors.readings = Readings(on_battery=True, battery_percent=80)
        assert await device.hear(Paused) == Paused("on battery, 80 %")
        full = (block(1, 4, 3, resident_rows=4), block(2, 3, 5, resident_rows=3))
        await device.send(gemm(2, *full))
        assert await device.hear(Refused) == Refused(2, "paused")
        lent.sensors.readings = Readings()
        await device.hear(Resumed)
        gated.permits.release(2)
        again = gemm(1, *full)  # the same number: the first is forgotten
        await device.send(again)
        await device.result(again)


async def test_a_paused_agent_does_not_dial() -> None:
    async with serving(StubServer()) as server, lending(server.address, resume_after_s=0.0) as lent:
        first = await server.device()
        lent.sensors.readings = Readings(asked="a signal")
        await first.hear(Paused)
        await first.socket.close()
        await lent.shown.shows("trying again")
        lent.sensors.readings = Readings()
        await works(await server.device())
        resumed = lent.shown.states.index("resumed")
        assert [state for state in lent.shown.states[:resumed] if "serving" in state] == [
            f"serving {server.address.authority} as device 1"
        ]


@pytest.mark.parametrize("heartbeat_s", [0.0, 1e6])
async def test_an_absurd_heartbeat_is_refused(heartbeat_s: float) -> None:
    async with serving(StubServer(heartbeat_s=heartbeat_s)) as server:
        lent = Lending(server.address, None, retry=False)
        assert await lent.ends() == LOST
        assert "heartbeat" in lent.shown.states[-1]
