"""A fleet with agents of its own leaves nothing behind, however it ends."""

from __future__ import annotations

import signal

import psutil
import pytest
from tests.end_to_end.processes import script
from tests.end_to_end.waiting import until

from cleave.errors import NoDevicesError
from cleave.server.local import AgentOptions, local_fleet

pytestmark = pytest.mark.timeout(60)

OWNER = """
import time, cleave
fleet = cleave.local_fleet(1, backend="numpy")
print("agent", fleet.agents[0].process.pid)
time.sleep(60)
"""


def test_closing_ends_all_agents_even_a_frozen_one() -> None:
    fleet = local_fleet(2, backend="numpy")
    pids = [each.process.pid for each in fleet.agents]
    fleet.agents[0].process.send_signal(signal.SIGSTOP)
    fleet.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    fleet.close()


def test_agents_do_not_outlive_a_script_that_was_killed() -> None:
    with script(OWNER) as owner:
        pid = int(owner.tells("agent"))
        assert psutil.pid_exists(pid)
        owner.kill()
        until(lambda: not psutil.pid_exists(pid))


def test_an_agent_that_cannot_start_is_named() -> None:
    unusable = AgentOptions(name="unusable", memory="much")
    with pytest.raises(NoDevicesError, match="agent unusable ended with code 2"):
        local_fleet(agents=[unusable])
