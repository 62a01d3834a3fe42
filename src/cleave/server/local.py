"""A fleet with agents on this machine: for tests, notebooks and trying out."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import psutil

from cleave.errors import ConfigError, NoDevicesError
from cleave.server.fleet import Fleet

_LEAVE_S = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """How a local agent is started; None leaves it to the agent.

    Attributes:
        name: What it is called.
        backend: ``"auto"``, ``"torch"`` or ``"numpy"``.
        memory: What it lends, as ``cleave join --memory`` reads it: ``"500MB"``; None is a fair
            share of half of this machine's free memory.
        threads: Processor threads.
        limit_down: Link rate to it, as ``--limit-down`` reads it: ``"50Mbit/s"``.
        limit_up: Link rate from it.
    """

    name: str | None = None
    backend: str = "auto"
    memory: str | None = None
    threads: int | None = 1
    limit_down: str | None = None
    limit_up: str | None = None

    def arguments(self) -> list[str]:
        """The same as command-line arguments."""
        options = {
            "--name": self.name,
            "--backend": self.backend,
            "--memory": self.memory,
            "--threads": self.threads,
            "--limit-down": self.limit_down,
            "--limit-up": self.limit_up,
        }
        return [
            text
            for option, value in options.items()
            if value is not None
            for text in (option, str(value))
        ]


class LocalAgent:
    """An agent process on this machine; it ends when this process does."""

    def __init__(self, join_url: str, options: AgentOptions) -> None:
        """Start it."""
        self.name = options.name or "agent"
        command = [sys.executable, "-m", "cleave", "join", join_url, *options.arguments()]
        self.process = subprocess.Popen(
            [*command, "--parent-pid", str(os.getpid())], stdin=subprocess.DEVNULL
        )

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End it without a word, as a power cut would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ask it to leave, and make sure that it does."""
        self.process.terminate()
        try:
            self.process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self.kill()


class LocalFleet(Fleet):
    """A `Fleet` that starts and ends its own agents.

    Attributes:
        agents: Those started, in order.
    """

    agents: list[LocalAgent]
    share_bytes: int

    def add_agent(self, options: AgentOptions | None = None, **changes: object) -> LocalAgent:
        """Start one more; it has joined when `Fleet.wait` says so.

        Args:
            options: How; a plain one if None.
            changes: Or single fields of `AgentOptions`.
        """
        options = options or _options(len(self.agents), **changes)
        if options.memory is None:
            options = replace(options, memory=f"{self.share_bytes}B")
        agent = LocalAgent(self.join_url, options)
        self.agents.append(agent)
        return agent

    def close(self) -> None:
        """Close the server and end all agents."""
        super().close()
        for agent in self.agents:
            if agent.is_alive:
                agent.process.terminate()
        for agent in self.agents:
            agent.stop()

    def __enter__(self) -> LocalFleet:
        return self


def local_fleet(
    n: int = 2,
    agents: Sequence[AgentOptions] | None = None,
    *,
    timeout: float = 120.0,
    backend: str = "auto",
    memory: str | None = None,
    threads: int | None = 1,
    **fleet_options: object,
) -> LocalFleet:
    """A fleet on loopback with ``n`` agent processes that have joined.

    Args:
        n: How many, if ``agents`` does not say.
        agents: How each is started, for unequal ones.
        timeout: Seconds until all must be in.
        backend: Of each, if ``agents`` does not say.
        memory: What each lends, likewise.
        threads: Threads of each, likewise.
        fleet_options: As for `Fleet`.

    Raises:
        NoDevicesError: If an agent ends, or is not in after ``timeout``.
    """
    if agents is None:
        if n < 0:
            raise ConfigError(f"local_fleet of {n} agents: expected 0 or more")
        agents = [_options(i, backend=backend, memory=memory, threads=threads) for i in range(n)]
    fleet = LocalFleet(**{"host": "127.0.0.1", **fleet_options})  # type: ignore[arg-type]
    try:
        fleet.agents = []
        fleet.share_bytes = psutil.virtual_memory().available // (2 * max(1, len(agents)))
        for options in agents:
            fleet.add_agent(options)
        _wait(fleet, len(agents), timeout)
    except BaseException:
        fleet.close()
        raise
    return fleet


def _wait(fleet: LocalFleet, n: int, timeout: float) -> None:
    deadline_s = time.monotonic() + timeout
    while True:
        try:
            fleet.wait(n, timeout=min(1.0, timeout))
        except NoDevicesError:
            dead = [agent for agent in fleet.agents if not agent.is_alive]
            if dead:
                raise NoDevicesError(
                    f"agent {dead[0].name} ended with code {dead[0].process.returncode} before "
                    "it had joined; its message stands above"
                ) from None
            if time.monotonic() > deadline_s:
                raise
        else:
            return


def _options(index: int, **changes: object) -> AgentOptions:
    return AgentOptions(**{"name": f"local-{index + 1}", **changes})  # type: ignore[arg-type]
