"""A minute of everything at once: devices die, freeze, fall silent, pause and come, at random."""

from __future__ import annotations

import random
import signal
from contextlib import ExitStack

import pytest
from tests.end_to_end.processes import polite_agent
from tests.end_to_end.proxy import Proxy
from tests.end_to_end.training import training
from tests.end_to_end.waiting import until

from cleave.server.fleet import Fleet

N_STEPS = 60
N_DEVICES = 3


class Wild:
    """A device to which anything may happen."""

    def __init__(self, fleet: Fleet, name: str, fate: random.Random) -> None:
        self._fate = fate
        self._network = Proxy(fleet.join_url)
        self._name = name
        self._process = polite_agent(self._network.join_url, name)

    def suffers(self) -> None:
        """One thing happens."""
        act = self._fate.choice(
            [self.dies, self.freezes, self.goes_on, self.falls_silent, self.is_cut, self.pauses]
        )
        act()

    def dies(self) -> None:
        self._process.close()
        self._network.drop()
        self._process = polite_agent(self._network.join_url, self._name)

    def freezes(self) -> None:
        self._process.send(signal.SIGSTOP)

    def goes_on(self) -> None:
        self._process.send(signal.SIGCONT)
        self._process.send(signal.SIGUSR2)
        self._network.release()

    def falls_silent(self) -> None:
        self._network.down.hold(self._fate.randrange(1 << 20))
        self._network.up.hold(self._fate.randrange(1 << 20))

    def is_cut(self) -> None:
        self._network.drop()

    def pauses(self) -> None:
        self._process.send(signal.SIGUSR1)

    def close(self) -> None:
        self._process.close()
        self._network.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("without_devices", ["wait", "host"])
def test_every_step_is_right_whatever_happens(without_devices: str, seed: int) -> None:
    fate = random.Random(seed)
    with (
        Fleet("127.0.0.1", without_devices=without_devices, heartbeat_s=2.0) as fleet,
        ExitStack() as stack,
    ):
        wild = [Wild(fleet, f"wild-{i}", fate) for i in range(N_DEVICES)]
        for each in wild:
            stack.callback(each.close)
        fleet.wait(N_DEVICES, timeout=60)
        with training(fleet, N_STEPS) as steps:
            while not steps.done:
                fate.choice(wild).suffers()
                fate.choice(wild).goes_on()
                steps.waits(fate.random())
            steps.must_be_right()
        until(lambda: fleet.stats().matrices == 0)
