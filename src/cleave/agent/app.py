"""An agent from start to end: dial, join, serve, and dial again; its owner may stop or pause it."""

from __future__ import annotations

import asyncio
import gc
import platform
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from cleave import __version__
from cleave.agent.config import AgentConfig
from cleave.agent.display import Display, LineDisplay, QuietDisplay, Work
from cleave.agent.executor import Executor
from cleave.agent.limits import PAUSE_POLL_S, Governor, MachineSensors, Sensors, pause_reason
from cleave.agent.link import Link, LinkError, dial
from cleave.agent.pace import Backoff
from cleave.agent.process import (
    Parent,
    leave_now,
    new_event_loop,
    on_signals,
    take_lowest_priority,
)
from cleave.agent.session import RejectedError, Session
from cleave.compute.backend import Backend
from cleave.compute.choose import load_backend
from cleave.errors import CleaveError, ProtocolError, VersionError
from cleave.units import format_bytes
from cleave.wire.buffers import keep_large_buffers, return_free_memory
from cleave.wire.messages import LONGEST_HEARTBEAT_S, Goodbye, Hello, Rejected, Welcome

LEFT = 0
LOST = 1
REJECTED = 2

WELCOME_TIMEOUT_S = 15.0
GOODBYE_TIMEOUT_S = 0.3
GOOD_SESSION_S = 10.0


class Agent:
    """Joins a server, serves it, and joins again when the connection is lost.

    Args:
        config: What the owner decided.
        backend: Computes.
        sensors: Say when the owner comes first.
        display: Shows what goes on.
        backoff: How long to wait before dialling again.
        wall_s: The wall clock, which goes on while the machine sleeps.
    """

    def __init__(
        self,
        config: AgentConfig,
        backend: Backend,
        *,
        sensors: Sensors,
        display: Display,
        backoff: Backoff | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._backend = backend
        self._executor = Executor(backend)
        self._sensors = sensors
        self._display = display
        self._backoff = backoff or Backoff(random.random)
        self._wall_s = wall_s
        self._governor = Governor(config.resume_after_s)
        self._parent = None if config.parent_pid is None else Parent(config.parent_pid)
        self._paused: str | None = None
        self._may_dial = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stop_reason = ""
        self._link: Link | None = None
        self._session: Session | None = None
        self._past = Work()

    @property
    def is_computing(self) -> bool:
        """Whether a task that nobody waits for any more may still run."""
        return self._executor.is_busy

    def stop(self, reason: str) -> None:
        """Leave the server and end `run`, within a second."""
        self._stop_reason = self._stop_reason or reason
        self._stopped.set()

    async def run(self) -> int:
        """The exit code, once the agent has been stopped, sent away, or may not try again."""
        tending = asyncio.create_task(self._tend())
        serving = asyncio.create_task(self._serve())
        stopping = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({tending, serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if tending.done():
                tending.result()
            if serving.done():
                return serving.result()
            await self._say_goodbye(serving)
            self._display.state(f"left: {self._stop_reason}")
            return LEFT
        finally:
            for task in (tending, serving, stopping):
                task.cancel()
            await asyncio.gather(tending, serving, stopping, return_exceptions=True)
            self._executor.close()

    async def _say_goodbye(self, serving: asyncio.Task[int]) -> None:
        if self._session is not None:
            with suppress(CleaveError, asyncio.TimeoutError):
                await asyncio.wait_for(self._session.leave(self._stop_reason), GOODBYE_TIMEOUT_S)
                # To hang up with something unread would reset the connection, and perhaps before
                # the server has read the goodbye: it hangs up when it has.
                await asyncio.wait({serving}, timeout=GOODBYE_TIMEOUT_S)

    async def _serve(self) -> int:
        while True:
            await self._may_dial.wait()
            try:
                await self._visit()
            except (RejectedError, VersionError) as error:
                reason = str(error)
                if isinstance(error, VersionError) or not error.retry:
                    self._display.failure(f"the server will not have this device: {reason}")
                    return REJECTED
            except (LinkError, ProtocolError) as error:
                reason = str(error)
            if self._stopped.is_set():
                return LEFT
            gc.collect()  # the error's frames hold the session, and so its blocks
            return_free_memory()
            if not self._config.retry:
                self._display.failure(reason)
                return LOST
            delay_s = self._backoff.next_s()
            self._display.state(f"{reason}; trying again in {delay_s:.1f} s")
            await asyncio.sleep(delay_s)

    async def _visit(self) -> None:
        """One connection: returns only by an error that says why it ended."""
        while not await asyncio.to_thread(self._executor.wait_idle, 0.3):
            pass  # what an earlier connection left running holds memory
        clock = asyncio.get_running_loop().time
        joined_s = None
        try:
            async with dial(self._config) as link:
                self._link = link
                welcome = await self._join(link)
                joined_s = clock()
                self._session = Session(
                    link,
                    self._backend,
                    self._executor,
                    budget_bytes=self._config.memory_bytes,
                    heartbeat_s=welcome.heartbeat_s,
                    wall_s=self._wall_s,
                )
                where = f"{self._config.address.authority} as device {welcome.device_id}"
                self._display.state(f"serving {where}")
                if self._paused is not None:
                    self._session.pause(self._paused)
                await self._session.run()
        finally:
            self._past = self._work()
            self._session = self._link = None
            if joined_s is not None and clock() - joined_s >= GOOD_SESSION_S:
                self._backoff.reset()

    async def _join(self, link: Link) -> Welcome:
        await link.send(hello(self._config, self._backend))
        received = None
        while received is None or isinstance(received, bytes):
            received = await link.receive(WELCOME_TIMEOUT_S)
        message, _ = received
        if isinstance(message, Rejected):
            raise RejectedError(message.reason, message.retry)
        if isinstance(message, Goodbye):
            raise LinkError(f"the server left: {message.reason}")
        if not isinstance(message, Welcome):
            raise ProtocolError(f"the server began with {type(message).__name__}, not Welcome")
        if not 0 < message.heartbeat_s <= LONGEST_HEARTBEAT_S:
            raise ProtocolError(f"the server's heartbeat is {message.heartbeat_s} s")
        return message

    async def _tend(self) -> None:
        """Every second: the owner's wishes, the parent, the display."""
        clock = asyncio.get_running_loop().time
        while True:
            reason = pause_reason(
                self._sensors.read(), may_use_battery=self._config.may_use_battery
            )
            self._set_paused(self._governor.update(reason, clock()))
            if self._parent is not None and self._parent.is_gone:
                self.stop("the process that started it is gone")
            self._display.work(self._work())
            await asyncio.sleep(PAUSE_POLL_S)

    def _set_paused(self, reason: str | None) -> None:
        was_paused, self._paused = self._paused is not None, reason
        if reason is not None:
            self._may_dial.clear()
            self._display.state(f"paused: {reason}")
            if self._session is not None:
                self._session.pause(reason)
            return
        self._may_dial.set()
        if was_paused:
            self._display.state("resumed")
            if self._session is not None:
                self._session.resume()

    def _work(self) -> Work:
        session, link, past = self._session, self._link, self._past
        return Work(
            tasks_done=past.tasks_done + (session.tasks_done if session else 0),
            received_bytes=past.received_bytes + (link.received_bytes if link else 0),
            sent_bytes=past.sent_bytes + (link.sent_bytes if link else 0),
            held_bytes=session.held_bytes if session else 0,
        )


def hello(config: AgentConfig, backend: Backend) -> Hello:
    """What an agent says first."""
    return Hello(
        token=config.address.token,
        name=config.name,
        agent_version=__version__,
        backend=backend.name,
        platform=f"{platform.system()} {platform.machine()}, {psutil.cpu_count()} cores",
        ops=tuple(sorted(backend.ops)),
        dtypes=backend.dtypes,
        memory_bytes=config.memory_bytes,
    )


def run_agent(config: AgentConfig) -> int:
    """Lend this machine until the owner stops it; the exit code for the process.

    Ends the process itself where a task would still keep it from ending.

    Returns:
        0 if it was stopped, 1 if a connection was lost and ``config.retry`` is off, 2 if the server
        will not have this device.

    Raises:
        ConfigError: If the backend is not available.
    """
    keep_large_buffers()
    if config.lowest_priority:
        take_lowest_priority()
    backend = load_backend(config.backend, config.device, config.threads)
    is_alone = config.parent_pid is None
    display: Display = LineDisplay(sys.stderr) if is_alone else QuietDisplay(sys.stderr)
    display.state(
        f"joining {config.address.authority} with {backend.name}, "
        f"lending {format_bytes(config.memory_bytes)}"
    )
    loop = new_event_loop()
    try:
        code, is_computing = loop.run_until_complete(_run(config, backend, display))
    finally:
        loop.close()
    if is_computing:
        leave_now(code)
    return code


async def _run(config: AgentConfig, backend: Backend, display: Display) -> tuple[int, bool]:
    sensors = MachineSensors(config.pause_file)
    agent = Agent(config, backend, sensors=sensors, display=display)

    def ask_to_pause(wanted: bool) -> None:
        sensors.asked_by_signal = wanted

    on_signals(asyncio.get_running_loop(), agent.stop, ask_to_pause)
    code = await agent.run()
    return code, agent.is_computing
