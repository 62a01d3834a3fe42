"""An agent inside a test: fake sensors, no waiting between attempts, and what it showed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.agent.stub_server import BOUND_S

from cleave.agent.app import Agent
from cleave.agent.config import AgentConfig
from cleave.agent.display import Work
from cleave.agent.limits import Readings
from cleave.agent.pace import Backoff
from cleave.compute import load_backend
from cleave.compute.backend import Backend
from cleave.wire.join import JoinAddress


class FakeSensors:
    """Says what the test says."""

    def __init__(self) -> None:
        self.readings = Readings()

    def read(self) -> Readings:
        return self.readings


class Record:
    """Keeps what an agent shows."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self._changed = asyncio.Event()

    def state(self, text: str) -> None:
        self.states.append(text)
        self._changed.set()

    def failure(self, text: str) -> None:
        self.state(text)

    def work(self, work: Work) -> None:
        self.last_work = work

    async def shows(self, text: str) -> str:
        """The first state that contains ``text``, waiting for it."""

        async def wait() -> str:
            while True:
                for state in self.states:
                    if text in state:
                        return state
                self._changed.clear()
                await self._changed.wait()

        return await asyncio.wait_for(wait(), BOUND_S)


class Lending:
    """An agent, what it shows, and the sensors that it reads."""

    def __init__(self, address: JoinAddress, backend: Backend | None, **options: Any) -> None:
        options.setdefault("memory_bytes", 1 << 20)
        config = AgentConfig(address=address, name="laptop", **options)
        self.wall_now_s = 0.0
        self.sensors = FakeSensors()
        self.shown = Record()
        self.agent = Agent(
            config,
            backend or load_backend("numpy"),
            sensors=self.sensors,
            display=self.shown,
            backoff=Backoff(lambda: 0.0, first_s=0.02, cap_s=0.1),
            wall_s=lambda: self.wall_now_s,
        )

    async def ends(self) -> int:
        """The exit code of an agent that ends by itself."""
        return await asyncio.wait_for(self.agent.run(), BOUND_S)


@asynccontextmanager
async def lending(
    address: JoinAddress, backend: Backend | None = None, **options: Any
) -> AsyncIterator[Lending]:
    """A running agent; it is stopped at the end of the block."""
    lent = Lending(address, backend, **options)
    running = asyncio.create_task(lent.agent.run())
    try:
        yield lent
    finally:
        lent.agent.stop("the test is over")
        await asyncio.wait_for(running, BOUND_S)
