"""A fleet with agents of its own leaves nothing behind, however it ends."""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch
from tests.end_to_end.processes import agent, script
from tests.end_to_end.waiting import BOUND_S, until
from tests.end_to_end.works import product

from cleave.errors import NoDevicesError
from cleave.server.fleet import Fleet
from cleave.server.local import AgentOptions, local_fleet

pytestmark = pytest.mark.timeout(120)

OWNER = """
import time, cleave
fleet = cleave.local_fleet(1, backend="numpy")
print("agent", fleet.agents[0].process.pid, flush=True)
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


def test_work_may_be_submitted_by_many_threads_at_once() -> None:
    def is_right(seed: int) -> bool:
        generator = torch.Generator().manual_seed(seed)
        m, n, k = (int(size) for size in torch.randint(1, 200, (3,), generator=generator))
        a, b = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
        return torch.allclose(product(fleet, a, b).result(), a @ b, rtol=1e-4, atol=1e-4)

    with local_fleet(2, backend="numpy") as fleet, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_right, range(100)))
        stats = fleet.stats()
    assert stats.matrices == 0
    assert stats.host_tasks == 0


def test_without_uvloop_it_works_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with local_fleet(1, backend="numpy") as fleet:
        assert product(fleet, torch.ones(3, 5), torch.ones(5, 2)).result()[0, 0] == 5.0
        assert fleet.stats().device_tasks == 1


@pytest.mark.skipif(sys.platform != "linux", reason="limits a process's memory")
def test_a_machine_with_less_memory_than_it_lends_is_passed_over() -> None:
    with Fleet("127.0.0.1") as fleet, agent(fleet.join_url, "--memory", "1GB") as poor:
        fleet.wait(timeout=BOUND_S)
        process = psutil.Process(poor.pid)
        most_bytes = process.memory_info().vms + (64 << 20)
        process.rlimit(psutil.RLIMIT_AS, (most_bytes, most_bytes))
        ones = torch.ones(4000, 4000)
        assert product(fleet, ones, ones).result()[0, 0] == 4000.0
        assert fleet.stats().host_tasks > 0
        before = fleet.stats().device_flops

        def does_what_fits() -> bool:
            few = torch.eye(5)
            assert product(fleet, few, few).result().equal(few)
            return fleet.stats().device_flops > before

        until(does_what_fits)  # at once, or after it had too little even to receive and came back


def test_products_in_slabs_are_right_even_when_a_device_dies() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(300, 700), torch.randn(700, 200)
    with local_fleet(3, backend="numpy") as fleet:
        first = product(fleet, a, b, n_slabs=3).result()
        torch.testing.assert_close(first, a @ b, rtol=1e-4, atol=1e-3)
        underway = product(fleet, a, b, n_slabs=3)
        fleet.agents[0].process.send_signal(signal.SIGKILL)
        torch.testing.assert_close(underway.result(), a @ b, rtol=1e-4, atol=1e-3)
