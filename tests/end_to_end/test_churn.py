"""Devices die, freeze, fall silent, come late and come back: every step is done, and right."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from tests.end_to_end.processes import Process, agent, polite_agent, script
from tests.end_to_end.proxy import Proxy
from tests.end_to_end.training import training
from tests.end_to_end.waiting import BOUND_S, until
from tests.end_to_end.works import Chain

from cleave.server.fleet import Fleet
from cleave.server.local import local_fleet
from cleave.server.status import DeviceStatus
from cleave.wire.join import JoinAddress

pytestmark = pytest.mark.timeout(120)

HEARTBEAT_S = 2.0
SOME_BYTES = 1 << 18  # a quarter of a piece: no task is through with so little


def named(fleet: Fleet, name: str) -> DeviceStatus:
    """The latest device of this name."""
    return [device for device in fleet.devices if device.name == name][-1]


def is_in(fleet: Fleet, name: str) -> bool:
    return any(device.name == name and device.state != "gone" for device in fleet.devices)


SERVER = """
import time, cleave
with cleave.Fleet("127.0.0.1") as fleet:
    print("url", fleet.join_url, flush=True)
    fleet.wait(2)
    print("ready", flush=True)
    time.sleep(60)
"""


class Others:
    """Who takes over when a device dies: another device, which is paused till then, or the host."""

    def __init__(self, fleet: Fleet, survivor: Process | None) -> None:
        self.fleet = fleet
        self._survivor = survivor

    def rest(self) -> None:
        if self._survivor is not None:
            self._survivor.send(signal.SIGUSR1)
            until(lambda: named(self.fleet, "survivor").state == "paused")

    def take_over(self) -> None:
        if self._survivor is not None:
            self._survivor.send(signal.SIGUSR2)


class Victim:
    """A device that is about to die, and the network between it and the server."""

    def __init__(self, process: Process, network: Proxy, others: Others) -> None:
        self.process = process
        self.network = network
        self._others = others

    @property
    def status(self) -> DeviceStatus:
        return named(self._others.fleet, "victim")

    def dies(self) -> None:
        """A power cut: the process ends, and its connection with it."""
        self.process.kill()
        self.network.drop()
        until(lambda: self.status.state == "gone")
        self._others.take_over()


@pytest.fixture(scope="module")
def by_device() -> Iterator[Others]:
    with (
        Fleet("127.0.0.1", without_devices="wait") as fleet,
        polite_agent(fleet.join_url, "survivor") as survivor,
    ):
        fleet.wait(timeout=BOUND_S)
        yield Others(fleet, survivor)


@pytest.fixture(scope="module")
def by_host() -> Iterator[Others]:
    with Fleet("127.0.0.1") as fleet:
        yield Others(fleet, None)


@pytest.fixture(params=["by_device", "by_host"])
def others(request: pytest.FixtureRequest) -> Others:
    """One after the other."""
    found: Others = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def victim(others: Others) -> Iterator[Victim]:
    others.rest()
    with (
        Proxy(others.fleet.join_url) as network,
        agent(network.join_url, "--name", "victim") as process,
    ):
        until(lambda: is_in(others.fleet, "victim"))
        yield Victim(process, network, others)
    until(lambda: not is_in(others.fleet, "victim"))


def test_a_device_killed_while_idle_is_not_missed(others: Others, victim: Victim) -> None:
    assert victim.status.state == "idle"
    victim.dies()
    assert victim.status.reason == "connection closed"
    with training(others.fleet) as steps:
        steps.must_be_right()


def test_a_device_killed_while_it_receives_is_replaced(others: Others, victim: Victim) -> None:
    victim.network.down.hold(SOME_BYTES)
    with training(others.fleet) as steps:
        until(lambda: victim.network.down.is_waiting and victim.status.open_tasks)
        victim.dies()
        steps.must_be_right()
    assert victim.status.open_tasks > 0
    assert victim.status.reason == "connection closed"


def test_a_device_killed_while_it_computes_is_replaced(others: Others, victim: Victim) -> None:
    chain = Chain()
    idle_s = victim.process.cpu_s
    victim.network.up.hold()
    under_way = chain.start(others.fleet)
    until(lambda: victim.process.cpu_s > idle_s + 0.1)
    victim.dies()
    assert under_way.result().equal(chain.expected)
    assert victim.status.open_tasks > 0


def test_a_device_killed_while_it_sends_is_replaced(others: Others, victim: Victim) -> None:
    victim.network.up.hold(SOME_BYTES)
    with training(others.fleet) as steps:
        until(lambda: victim.network.up.is_waiting)
        victim.dies()
        steps.must_be_right()
    assert victim.status.open_tasks > 0


def test_a_frozen_device_is_overtaken_and_works_again_when_it_goes_on(
    others: Others, victim: Victim
) -> None:
    chain = Chain()
    under_way = chain.start(others.fleet)
    until(lambda: victim.status.open_tasks)
    victim.process.send(signal.SIGSTOP)
    others.take_over()
    assert under_way.result().equal(chain.expected)
    late = victim.status
    assert late.state == "late"
    victim.process.send(signal.SIGCONT)
    until(lambda: victim.status.state == "idle")
    assert victim.status.wasted_flops > 0
    others.rest()
    assert chain.start(others.fleet).result().equal(chain.expected)
    assert victim.status.flops > late.flops


@pytest.fixture
def alert() -> Iterator[Fleet]:
    """A fleet that notices soon when a device has fallen silent."""
    with Fleet("127.0.0.1", without_devices="wait", heartbeat_s=HEARTBEAT_S) as fleet:
        yield fleet


def test_a_device_frozen_for_long_is_gone_and_comes_back_as_another(alert: Fleet) -> None:
    with agent(alert.join_url) as frozen:
        alert.wait(timeout=BOUND_S)
        chain = Chain()
        under_way = chain.start(alert)
        until(lambda: alert.devices[0].open_tasks)
        frozen.send(signal.SIGSTOP)
        until(lambda: alert.devices[0].state == "gone")
        assert "connection lost" in alert.devices[0].reason
        frozen.send(signal.SIGCONT)
        assert under_way.result().equal(chain.expected)
        assert [event.kind for event in alert.events] == ["joined", "left", "joined"]


def test_a_network_that_falls_silent_costs_a_device_until_it_is_back(alert: Fleet) -> None:
    with Proxy(alert.join_url) as network, agent(network.join_url) as remote:
        alert.wait(timeout=BOUND_S)
        chain = Chain()
        under_way = chain.start(alert)
        until(lambda: alert.devices[0].open_tasks)
        network.down.hold()
        network.up.hold()
        until(lambda: alert.n_devices == 0)
        remote.says("the server was silent")
        network.release()
        assert under_way.result().equal(chain.expected)


def test_a_device_that_joins_in_mid_step_takes_part() -> None:
    with (
        Fleet("127.0.0.1", without_devices="wait") as fleet,
        Proxy(fleet.join_url) as network,
        agent(network.join_url, "--name", "first"),
    ):
        fleet.wait(timeout=BOUND_S)
        network.down.hold(SOME_BYTES)
        with training(fleet) as steps:
            until(lambda: named(fleet, "first").open_tasks)
            with agent(fleet.join_url, "--name", "second"):
                until(lambda: is_in(fleet, "second") and named(fleet, "second").flops)
                network.release()
                steps.must_be_right()


def test_when_all_devices_are_lost_one_that_comes_finishes_the_step() -> None:
    with (
        local_fleet(2, backend="numpy", without_devices="wait") as fleet,
        training(fleet, n_steps=2) as steps,
    ):
        until(lambda: any(device.open_tasks for device in fleet.devices))
        for each in fleet.agents:
            each.kill()
        until(lambda: fleet.n_devices == 0)
        assert not steps.done
        fleet.add_agent(backend="numpy")
        steps.must_be_right()
        assert fleet.stats().devices_left == 2
        assert fleet.stats().redone_tasks > 0


def test_agents_return_by_themselves_to_a_server_that_crashed_or_closed() -> None:
    with script(SERVER) as crashing:
        address = JoinAddress.parse(crashing.tells("url"))
        url, port, token = address.url, address.port, address.token
        with agent(url), agent(url):
            crashing.says("ready")
            crashing.kill()
            for _ in range(2):
                with Fleet("127.0.0.1", port, token, without_devices="wait") as fleet:
                    with training(fleet) as steps:
                        steps.must_be_right()
                    fleet.wait(2, timeout=BOUND_S)
