"""An owner's machine comes first: it is given back in two seconds, and the work goes elsewhere."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.end_to_end.processes import Process, agent, polite_agent
from tests.end_to_end.waiting import BOUND_S, until
from tests.end_to_end.works import Chain

from cleave.server.fleet import Fleet

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals"),
]

WITHIN_S = 2.0


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet("127.0.0.1", without_devices="wait") as fleet:
        yield fleet


@pytest.fixture(scope="module")
def laptop(fleet: Fleet) -> Iterator[Process]:
    with polite_agent(fleet.join_url, "laptop") as process:
        fleet.wait(timeout=BOUND_S)
        yield process


def state(fleet: Fleet, name: str) -> str:
    return [device.state for device in fleet.devices if device.name == name][-1]


def test_a_signal_pauses_it_and_another_device_does_the_rest(fleet: Fleet, laptop: Process) -> None:
    chain = Chain(n_turns=4000)
    under_way = chain.start(fleet)
    until(lambda: state(fleet, "laptop") == "busy")
    laptop.send(signal.SIGUSR1)
    asked_s = time.monotonic()
    until(lambda: state(fleet, "laptop") == "paused")
    assert time.monotonic() - asked_s < WITHIN_S
    assert not under_way.done
    with agent(fleet.join_url, "--name", "other"):
        assert under_way.result().equal(chain.expected)
        assert state(fleet, "laptop") == "paused"
        assert fleet.devices[0].flops == 0
    laptop.send(signal.SIGUSR2)
    assert chain.start(fleet).result().equal(chain.expected)
    assert [event.kind for event in fleet.events if event.name == "laptop"] == [
        "joined",
        "paused",
        "resumed",
    ]


def test_a_file_pauses_it_and_its_owner_is_told_why(fleet: Fleet, tmp_path: Path) -> None:
    busy = tmp_path / "busy"
    with agent(fleet.join_url, "--name", "desk", "--pause-file", str(busy)) as desk:
        until(lambda: fleet.devices[-1].name == "desk")
        busy.touch()
        asked_s = time.monotonic()
        until(lambda: state(fleet, "desk") == "paused")
        assert time.monotonic() - asked_s < WITHIN_S
        desk.says(f"paused: asked by the owner with the file {busy}")
        assert fleet.devices[-1].reason == f"asked by the owner with the file {busy}"
        assert psutil.Process(desk.pid).nice() == 19
