"""A small real server: takes agents in on a WebSocket and lets a test speak with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import numpy as np
from aiohttp import WSMsgType, web

from cleave.core.matrix import Region
from cleave.wire.codec import MAX_FRAME_BYTES, Buffer, decode_from_agent, encode
from cleave.wire.join import DEVICE_PATH, JoinAddress
from cleave.wire.messages import (
    AgentMessage,
    Finished,
    Hello,
    Message,
    Piece,
    ResultPiece,
    RunTask,
    Welcome,
)
from cleave.wire.pieces import PrefixCursor, pieces

BOUND_S = 20.0
M = TypeVar("M", bound=Message)


class Device:
    """One agent's connection, from the server's side."""

    def __init__(self, socket: web.WebSocketResponse, hello: Hello) -> None:
        self.socket = socket
        self.hello = hello
        self.is_deaf = False
        self.inbox: asyncio.Queue[tuple[AgentMessage, memoryview] | None] = asyncio.Queue()

    async def send(self, message: Message, payload: Buffer = b"") -> None:
        await self.socket.send_bytes(encode(message, payload))

    async def fill(self, handle: int, array: np.ndarray, row0: int, row1: int) -> None:
        """Send rows of a block in pieces of at most 16 bytes."""
        for piece in pieces(row0, row1, array.shape[1], array.itemsize, 16):
            message = Piece(handle, piece.row0, piece.row1, piece.col0, piece.col1)
            part = np.ascontiguousarray(array[piece.row0 : piece.row1, piece.col0 : piece.col1])
            await self.send(message, part.data.cast("B"))

    async def fill_columns(self, handle: int, row: np.ndarray, col0: int, col1: int) -> None:
        """Send a part of a block of one row."""
        part = row[:, col0:col1].tobytes()
        await self.send(Piece(handle, 0, 1, col0, col1), part)

    async def next(self) -> tuple[AgentMessage, memoryview]:
        """What the agent says next; fails if it has gone."""
        received = await asyncio.wait_for(self.inbox.get(), BOUND_S)
        assert received is not None, "the agent has gone"
        return received

    async def hear(self, kind: type[M]) -> M:
        """The next message, which must be of this kind."""
        message, _ = await self.next()
        assert isinstance(message, kind), message
        return message

    async def result(self, task: RunTask) -> np.ndarray:
        """The only output of a task, from its pieces up to `Finished`."""
        spec = task.outputs[0]
        out = np.empty((spec.n_rows, spec.n_cols), np.float32)
        cursor = PrefixCursor(spec.n_rows, spec.n_cols, 4)
        while True:
            message, payload = await self.next()
            if isinstance(message, Finished):
                assert message.task_id == task.task_id
                assert cursor.is_full
                return out
            assert isinstance(message, ResultPiece), message
            region = Region(message.row0, message.row1, message.col0, message.col1)
            cursor.advance(region, len(payload))
            part = np.frombuffer(payload, np.float32).reshape(region.n_rows, region.n_cols)
            out[region.row0 : region.row1, region.col0 : region.col1] = part

    async def gone(self) -> None:
        """Wait until the agent has left, whatever it says before."""
        while await asyncio.wait_for(self.inbox.get(), BOUND_S) is not None:
            continue


class StubServer:
    """Answers each agent's hello with ``reply``; no reply if it is None."""

    def __init__(self, reply: Message | bytes | None = None, *, heartbeat_s: float = 5.0) -> None:
        self.reply = reply or Welcome(device_id=1, server_version="0", heartbeat_s=heartbeat_s)
        self.port = 0
        self.pings: asyncio.Queue[bytes] = asyncio.Queue()
        self._devices: asyncio.Queue[Device] = asyncio.Queue()
        self._sockets: list[web.WebSocketResponse] = []
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> JoinAddress:
        return JoinAddress(host="127.0.0.1", port=self.port, token="t")

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get(DEVICE_PATH, self._connected)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Cut all connections and free the port."""
        for socket in self._sockets:
            await socket.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def device(self) -> Device:
        """The next agent that has said hello."""
        return await asyncio.wait_for(self._devices.get(), BOUND_S)

    async def _connected(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False, max_msg_size=MAX_FRAME_BYTES, autoping=False)
        await socket.prepare(request)
        self._sockets.append(socket)
        hello, _ = decode_from_agent(await socket.receive_bytes())
        assert isinstance(hello, Hello)
        device = Device(socket, hello)
        await socket.send_bytes(self.reply if isinstance(self.reply, bytes) else encode(self.reply))
        self._devices.put_nowait(device)
        async for frame in socket:
            if device.is_deaf:
                continue
            if frame.type is WSMsgType.PING:
                self.pings.put_nowait(frame.data)
                await socket.pong(frame.data)
            elif frame.type is WSMsgType.BINARY:
                device.inbox.put_nowait(decode_from_agent(frame.data))
        device.inbox.put_nowait(None)
        return socket


@asynccontextmanager
async def serving(server: StubServer) -> AsyncIterator[StubServer]:
    """The server, running for the time of the block."""
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
