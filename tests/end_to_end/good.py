"""A fleet with an honest device in it, which is to be unharmed by whatever others do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import torch
from tests.end_to_end.fake_agent import FakeAgent, fake_agent
from tests.end_to_end.waiting import BOUND_S, until
from tests.end_to_end.works import Underway, product

from cleave.server.fleet import Fleet


class Good:
    """A fleet, and an honest device in it that outlives all the others."""

    def __init__(self, fleet: Fleet, device: FakeAgent) -> None:
        self.fleet = fleet
        self.device = device

    @property
    def url(self) -> str:
        return self.fleet.join_url

    async def rests(self) -> None:
        """From now on others get the work."""
        await self.device.pause()
        await eventually(lambda: self.fleet.devices[0].state == "paused")

    async def does(self, work: Work) -> None:
        """It has work done that is under way, or left over from others."""
        await self.device.resume()
        await work.is_right()

    async def is_unharmed(self) -> None:
        """Its first session goes on, and it works."""
        assert self.fleet.devices[0].state != "gone"
        await Work(self.fleet).is_right()

    def events(self, kind: str) -> list[str]:
        return [event.text for event in self.fleet.events if event.kind == kind]


class Work:
    """A product under way."""

    def __init__(self, fleet: Fleet) -> None:
        a, b = torch.randn(64, 48), torch.randn(48, 32)
        self._expected = a @ b
        self._underway: Underway = product(fleet, a, b)

    async def is_right(self) -> None:
        result = await asyncio.to_thread(self._underway.result)
        torch.testing.assert_close(result, self._expected)


async def eventually(holds: Callable[[], object]) -> None:
    await asyncio.to_thread(until, holds)


@asynccontextmanager
async def good_fleet() -> AsyncIterator[Good]:
    """For the time of the block; without devices work waits."""
    with Fleet("127.0.0.1", without_devices="wait") as fleet:
        async with fake_agent(fleet.join_url, name="good") as device:
            await asyncio.to_thread(fleet.wait, 1, BOUND_S)
            yield Good(fleet, device)
