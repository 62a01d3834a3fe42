"""Ctrl-C is polite and quick on both sides, and a forked child hurts nobody."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest
import torch
from tests.end_to_end.fake_agent import FakeAgent, fake_agent
from tests.end_to_end.processes import agent, polite_agent, script
from tests.end_to_end.waiting import BOUND_S, until
from tests.end_to_end.works import Chain, product

from cleave.server.fleet import Fleet
from cleave.wire.messages import Goodbye, RunTask

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals"),
]

# A second for leaving, and two for an interpreter with torch to end on a busy machine.
WITHIN_S = 3.0

WAITS_FOR_DEVICES = """
import cleave
with cleave.Fleet("127.0.0.1") as fleet:
    print("url", fleet.join_url, flush=True)
    fleet.wait(1)
    print("joined", flush=True)
    fleet.wait(2)
"""

WAITS_FOR_WORK = """
import sys, torch, cleave
sys.path.insert(0, sys.argv[1])
from tests.end_to_end.works import Chain, product
with cleave.Fleet("127.0.0.1", without_devices="wait") as fleet:
    under_way = Chain(n_turns=16000).start(fleet)
    print("url", fleet.join_url, flush=True)
    fleet.wait(1)
    print("joined", flush=True)
    under_way.pending.wait()
"""

FORKS = """
import os, sys, time, torch, cleave
sys.path.insert(0, sys.argv[1])
from tests.end_to_end.works import Chain, product

chain = Chain(n_turns=100)
with cleave.Fleet("127.0.0.1", without_devices="wait") as fleet:
    print("url", fleet.join_url, flush=True)
    fleet.wait(1)
    early = os.fork()
    if not early:
        sys.exit(0)  # with all finalizers, within the block
    os.waitpid(early, 0)
    assert chain.start(fleet).result().equal(chain.expected)
    reading, writing = os.pipe()
    late = os.fork()
    if not late:
        os.write(writing, b"!")
        time.sleep(60)
        os._exit(0)
    os.read(reading, 1)
    port = fleet.port
    assert fleet.n_devices == 1
cleave.Fleet("127.0.0.1", port).close()
os.kill(late, 9)
os.waitpid(late, 0)
print("all is well")
"""


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    return str(request.config.rootpath)


def test_an_agent_leaves_at_once_and_says_so() -> None:
    with (
        Fleet("127.0.0.1", without_devices="wait") as fleet,
        polite_agent(fleet.join_url, "leaving") as leaving,
    ):
        fleet.wait(timeout=BOUND_S)
        under_way = Chain(n_turns=16000).start(fleet)
        until(lambda: fleet.devices[0].open_tasks)
        leaving.send(signal.SIGINT)
        assert leaving.ends_in_s() < WITHIN_S
        assert leaving.ends() == 0
        assert leaving.lines[-1].endswith("left: stopped by its owner")
        until(lambda: fleet.n_devices == 0)
        assert fleet.events[-1].text == "stopped by its owner"
        assert not under_way.done


@pytest.mark.parametrize("code", [WAITS_FOR_DEVICES, WAITS_FOR_WORK])
def test_a_script_that_waits_ends_at_once_and_tells_its_devices(code: str, root: str) -> None:
    with script(code, root) as training, agent(training.tells("url"), "--once") as device:
        training.says("joined")
        training.send(signal.SIGINT)
        assert training.ends_in_s() < WITHIN_S
        assert training.ends() == -signal.SIGINT
        assert training.lines[-1] == "KeyboardInterrupt"
        device.ends()
        assert "the server left: the server has closed" in device.text


def test_forked_children_neither_hurt_the_fleet_nor_keep_its_port(root: str) -> None:
    with script(FORKS, root) as forking, agent(forking.tells("url")):
        assert forking.ends() == 0, forking.text
        assert forking.lines[-1] == "all is well"


async def test_after_a_goodbye_the_server_sends_no_more() -> None:
    with Fleet("127.0.0.1", without_devices="wait") as fleet:
        async with fake_agent(fleet.join_url, hang) as leaving:
            await asyncio.to_thread(fleet.wait, 1, BOUND_S)
            ones = torch.ones(1024, 1024)
            works = [product(fleet, ones, ones) for _ in range(8)]
            await asyncio.to_thread(until, lambda: leaving.tasks)
            await leaving.send(Goodbye("home time"))
            await asyncio.to_thread(until, lambda: fleet.events[-1].kind == "left")
            assert fleet.events[-1].text == "home time"
            await leaving.is_closed()
            assert not any(work.done for work in works)


async def hang(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    """It hears nothing for a while, so that what the server sends piles up."""
    await asyncio.sleep(0.2)
