"""A device that a test may have misbehave: it speaks the real codec and computes with numpy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import aiohttp
from tests.end_to_end.waiting import BOUND_S

from cleave.agent.jobs import JobBook
from cleave.agent.store import BlockStore
from cleave.compute.numpy_backend import NumpyBackend
from cleave.core.matrix import DType, Region
from cleave.server.admission import FIRST_ID
from cleave.wire.codec import MAX_FRAME_BYTES, Buffer, decode_from_server, encode
from cleave.wire.join import JoinAddress
from cleave.wire.messages import (
    Cancel,
    Cancelled,
    Drop,
    Finished,
    Goodbye,
    Hello,
    Message,
    Paused,
    Piece,
    Rejected,
    ResultPiece,
    Resumed,
    RunTask,
    Welcome,
)
from cleave.wire.pieces import pieces

_BACKEND = NumpyBackend(threads=1)


class FakeAgent:
    """One connection to a server, from the device's side.

    Args:
        socket: Open.
        answer: Called with every task that counts and its results; `finish` is the honest one.
        test_answer: The same for the tasks that test it when it joins.

    Attributes:
        socket: For whatever a test wants to send.
        tasks: Those that counted, so far.
        rejected: Resolved when the server turns the device away.
        welcomed: Resolved when it takes it in.
        gone: Set when the connection has ended.
    """

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, answer: Answer, test_answer: Answer
    ) -> None:
        self.socket = socket
        self.tasks: list[RunTask] = []
        self._answer = answer
        self._test_answer = test_answer
        loop = asyncio.get_running_loop()
        self.rejected: asyncio.Future[Rejected] = loop.create_future()
        self.welcomed: asyncio.Future[Welcome] = loop.create_future()
        self.gone = asyncio.Event()
        self._store = BlockStore(_BACKEND, 1 << 30)
        self._book = JobBook(self._store)

    async def send(self, message: Message, payload: Buffer = b"") -> None:
        await self.socket.send_bytes(encode(message, payload))

    async def pause(self) -> None:
        await self.send(Paused("asked by a test"))

    async def resume(self) -> None:
        await self.send(Resumed())

    async def serve(self) -> None:
        """Do what the server says until the connection ends."""
        try:
            async for frame in self.socket:
                message, payload = decode_from_server(frame.data)
                await self._handle(message, payload)
        except (aiohttp.ClientError, ConnectionError):
            pass  # the server closed while a result was on its way
        finally:
            self.gone.set()

    async def is_closed(self) -> None:
        """Return when the server has closed the connection."""
        await asyncio.wait_for(self.gone.wait(), BOUND_S)

    async def _handle(self, message: Message, payload: memoryview) -> None:
        if isinstance(message, Welcome):
            self.welcomed.set_result(message)
        elif isinstance(message, Rejected):
            self.rejected.set_result(message)
        elif isinstance(message, Piece):
            region = Region(message.row0, message.row1, message.col0, message.col1)
            self._store.fill(message.handle, region, payload)
        elif isinstance(message, RunTask):
            for refusal in self._book.accept(message):
                await self.send(refusal)
        elif isinstance(message, Drop):
            for refusal in self._book.drop(message.handles):
                await self.send(refusal)
        elif isinstance(message, Cancel):
            for task_id in message.task_ids:
                job = self._book.find(task_id)
                if job is not None:
                    self._book.close(job)
                    await self.send(Cancelled(task_id))
        elif isinstance(message, Goodbye):
            await self.socket.close()
        await self._run_ready()

    async def _run_ready(self) -> None:
        for job in self._book.take_ready():
            inputs = [_BACKEND.view(block.array, view) for block, view in job.inputs]
            arrays = _BACKEND.run(job.task.program, inputs)
            results = [
                bytes(_BACKEND.read(array, spec.dtype))
                for array, spec in zip(arrays, job.task.outputs, strict=True)
            ]
            self._book.close(job)
            if job.task_id >= FIRST_ID:
                await self._test_answer(self, job.task, results)
            else:
                self.tasks.append(job.task)
                await self._answer(self, job.task, results)


Answer = Callable[[FakeAgent, RunTask, list[bytes]], Awaitable[None]]


async def finish(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    """The honest answer: all results in pieces, and that is all."""
    await send_results(agent, task, results)
    await agent.send(Finished(task.task_id, 0.001, 0))


async def send_results(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    """All results in pieces."""
    for index, (payload, spec) in enumerate(zip(results, task.outputs, strict=True)):
        row_bytes = spec.n_cols * spec.dtype.itemsize
        for piece in pieces(0, spec.n_rows, spec.n_cols, spec.dtype.itemsize):
            start = piece.row0 * row_bytes + piece.col0 * spec.dtype.itemsize
            part = payload[start : start + piece.area * spec.dtype.itemsize]
            where = (piece.row0, piece.row1, piece.col0, piece.col1)
            await agent.send(ResultPiece(task.task_id, index, *where), part)


def hello(join_url: str, **changes: object) -> Hello:
    """What it says first; single fields of it may be others."""
    fields: dict[str, object] = {
        "token": JoinAddress.parse(join_url).token,
        "name": "fake",
        "agent_version": "0",
        "backend": "numpy",
        "platform": "a test",
        "ops": tuple(sorted(_BACKEND.ops)),
        "dtypes": (DType.F32,),
        "memory_bytes": 1 << 30,
    }
    return Hello(**{**fields, **changes})  # type: ignore[arg-type]


@asynccontextmanager
async def dialled(join_url: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A bare connection on which nothing has been said."""
    async with aiohttp.ClientSession() as session:
        url = JoinAddress.parse(join_url).websocket_url
        async with session.ws_connect(url, compress=0, max_msg_size=MAX_FRAME_BYTES) as socket:
            yield cast("aiohttp.ClientWebSocketResponse", socket)


@asynccontextmanager
async def fake_agent(
    join_url: str,
    answer: Answer = finish,
    *,
    test_answer: Answer = finish,
    **changes: object,
) -> AsyncIterator[FakeAgent]:
    """A device that has said hello, and serves during the block.

    Args:
        join_url: Where.
        answer: What it does with tasks that count,
        test_answer: and with those that test it.
        changes: Fields of its hello.
    """
    async with dialled(join_url) as socket:
        agent = FakeAgent(socket, answer, test_answer)
        await agent.send(hello(join_url, **changes))
        serving = asyncio.create_task(agent.serve())
        try:
            yield agent
        finally:
            await socket.close()
            await serving
