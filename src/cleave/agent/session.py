"""One connection's life after the welcome: messages to jobs, results to messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass

from cleave.agent.executor import Executor, Outcome, error_text
from cleave.agent.jobs import Job, JobBook, Wish
from cleave.agent.link import Link, LinkError
from cleave.agent.store import BlockStore
from cleave.compute.backend import Backend
from cleave.core.matrix import Region
from cleave.errors import CleaveError, DeviceMemoryError, ProtocolError
from cleave.wire.messages import (
    Cancel,
    Cancelled,
    Drop,
    Failed,
    Finished,
    Goodbye,
    Message,
    Paused,
    Piece,
    Refused,
    Rejected,
    ResultPiece,
    Resumed,
    RunTask,
    ServerMessage,
)
from cleave.wire.pieces import pieces

SILENCE_HEARTBEATS = 3


class RejectedError(CleaveError):
    """The server will not have this device.

    Attributes:
        retry: Whether trying again unchanged can help.
    """

    def __init__(self, reason: str, retry: bool) -> None:
        super().__init__(reason)
        self.retry = retry


@dataclass(frozen=True, slots=True)
class Pong:
    """To be sent in answer to a ping."""

    data: bytes


class Session:
    """Serves one connection with a store of its own; nothing outlives it but the executor.

    Attributes:
        tasks_done: How many results have been sent.

    Args:
        link: To the server, which has said welcome.
        backend: Computes.
        executor: The thread that does so; without jobs of other sessions.
        budget_bytes: What the owner lends.
        heartbeat_s: How often both sides show that they live.
        wall_s: The wall clock, which goes on while the machine sleeps.
    """

    def __init__(
        self,
        link: Link,
        backend: Backend,
        executor: Executor,
        *,
        budget_bytes: int,
        heartbeat_s: float,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._link = link
        self._executor = executor
        self._store = BlockStore(backend, budget_bytes)
        self._book = JobBook(self._store)
        self._heartbeat_s = heartbeat_s
        self._silence_s = SILENCE_HEARTBEATS * heartbeat_s
        self._wall_s = wall_s
        self._paused = False
        self._outbox: asyncio.Queue[Message | Pong] = asyncio.Queue()
        self._results: asyncio.Queue[Outcome] = asyncio.Queue()
        self.tasks_done = 0

    @property
    def held_bytes(self) -> int:
        """Memory that is lent now: blocks, open tasks, and results on their way."""
        return self._store.held_bytes

    async def run(self) -> None:
        """Serve until the connection ends or this is cancelled; open jobs are then abandoned.

        Raises:
            LinkError: When the connection is gone, with the reason.
            RejectedError: If the server sends the device away.
            ProtocolError: If the server breaks the protocol.
        """
        parts: list[Coroutine[None, None, None]] = [
            self._receive(),
            self._send_messages(),
            self._send_results(),
            self._beat(),
            self._watch_the_clock(),
        ]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._abandon_all()

    async def leave(self, reason: str) -> None:
        """Say goodbye; for when this device's side ends the connection.

        Raises:
            LinkError: If the connection is gone.
        """
        await self._link.send(Goodbye(reason))

    def pause(self, reason: str) -> None:
        """Give back all open tasks and refuse new ones; blocks are kept."""
        if not self._paused:
            self._paused = True
            self._abandon_all()
            self._outbox.put_nowait(Paused(reason))

    def resume(self) -> None:
        """Take tasks again."""
        if self._paused:
            self._paused = False
            self._outbox.put_nowait(Resumed())

    async def _receive(self) -> None:
        while True:
            received = await self._link.receive(self._silence_s)
            if isinstance(received, bytes):
                self._outbox.put_nowait(Pong(received))
            elif received is not None:
                self._handle(*received)

    async def _send_messages(self) -> None:
        while True:
            message = await self._outbox.get()
            if isinstance(message, Pong):
                await self._link.pong(message.data)
            else:
                await self._link.send(message)

    async def _send_results(self) -> None:
        while True:
            outcome = await self._results.get()
            await self._send_result(outcome)
            del outcome

    async def _beat(self) -> None:
        # A server's own pings may queue behind what it sends on a slow downlink: ours do not.
        while True:
            await asyncio.sleep(self._heartbeat_s)
            await self._link.ping()

    async def _watch_the_clock(self) -> None:
        period_s = min(1.0, self._heartbeat_s)
        last_s = self._wall_s()
        while True:
            await asyncio.sleep(period_s)
            now_s = self._wall_s()
            if now_s - last_s > max(self._silence_s, 10.0):
                raise LinkError(f"this machine stood still for {now_s - last_s:.0f} s")
            last_s = now_s

    def _handle(self, message: ServerMessage, payload: memoryview) -> None:
        if isinstance(message, Piece):
            piece = Region(message.row0, message.row1, message.col0, message.col1)
            self._store.fill(message.handle, piece, payload)
        elif isinstance(message, RunTask):
            if self._paused:
                self._answer([self._book.refuse(message, "paused")])
            else:
                self._answer(self._book.accept(message))
        elif isinstance(message, Cancel):
            for task_id in message.task_ids:
                self._cancel(task_id)
        elif isinstance(message, Drop):
            self._answer(self._book.drop(message.handles))
        elif isinstance(message, Goodbye):
            raise LinkError(f"the server left: {message.reason}")
        elif isinstance(message, Rejected):
            raise RejectedError(message.reason, message.retry)
        else:
            raise ProtocolError("the server said welcome twice")
        self._submit_ready()

    def _submit_ready(self) -> None:
        loop = asyncio.get_running_loop()

        def deliver(outcome: Outcome) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits for it
                loop.call_soon_threadsafe(self._ended, outcome)

        for job in self._book.take_ready():
            self._executor.submit(job, deliver)

    def _cancel(self, task_id: int) -> None:
        job = self._book.find(task_id)
        if job is None:
            return
        if self._book.is_waiting(job) or self._executor.cancel(job):
            self._close(job, Cancelled(task_id))
        elif not job.leaves_blocks:
            job.wish = Wish.CANCELLED

    def _abandon_all(self) -> None:
        for job in self._book.waiting():
            if self._book.is_waiting(job):
                self._book.close(job)
        for job in self._book.given():
            self._book.abandon(job)
            if self._executor.cancel(job):
                self._close(job)

    def _ended(self, outcome: Outcome) -> None:
        job = outcome.job
        if outcome.cancelled or job.wish is Wish.NOTHING:
            self._close(job, Cancelled(job.task_id))
        elif isinstance(outcome.error, (MemoryError, DeviceMemoryError)):
            needed_bytes = getattr(outcome.error, "needed_bytes", 0)
            self._close(job, self._book.refuse(job.task, "memory", needed_bytes))
        elif outcome.error is not None:
            self._close(job, Failed(job.task_id, error_text(outcome.error)))
        else:
            self._book.made(job)
            self._results.put_nowait(outcome)
        self._submit_ready()

    async def _send_result(self, outcome: Outcome) -> None:
        job = outcome.job
        for index, payload in enumerate(outcome.results):
            if payload is None:
                continue
            spec = job.task.outputs[index]
            row_bytes = spec.n_cols * spec.dtype.itemsize
            size = self._link.piece_bytes
            for piece in pieces(0, spec.n_rows, spec.n_cols, spec.dtype.itemsize, size):
                if job.wish is not Wish.RESULT:
                    self._close(job, Cancelled(job.task_id))
                    return
                start = piece.row0 * row_bytes + piece.col0 * spec.dtype.itemsize
                end = start + piece.area * spec.dtype.itemsize
                message = ResultPiece(
                    job.task_id, index, piece.row0, piece.row1, piece.col0, piece.col1
                )
                await self._link.send_paced(message, payload[start:end])
        wished = job.wish
        self._close(job)
        if wished is Wish.RESULT:
            self.tasks_done += 1
            held_bytes = self._store.held_bytes
            await self._link.send(Finished(job.task_id, outcome.compute_s, held_bytes))
        self._submit_ready()

    def _close(self, job: Job, answer: Message | None = None) -> None:
        if job.wish is Wish.NOTHING:
            answer = None
        elif job.wish is Wish.CANCELLED:
            answer = Cancelled(job.task_id)
        if answer is not None:
            self._outbox.put_nowait(answer)
        self._answer(self._book.close(job))

    def _answer(self, refusals: Iterable[Refused]) -> None:
        for refusal in refusals:
            self._outbox.put_nowait(refusal)
