"""One device's socket: frames out in order, frames in checked, and a count of both."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from aiohttp import WSMsgType, web

from cleave.core.matrix import Region
from cleave.core.work import TaskOutput
from cleave.errors import CleaveError, OffloadError, ProtocolError
from cleave.server.operands import write_bytes
from cleave.wire.codec import decode_from_agent, encode
from cleave.wire.messages import (
    AgentMessage,
    Cancel,
    Cancelled,
    Drop,
    Failed,
    Finished,
    Goodbye,
    Hello,
    Message,
    Paused,
    Piece,
    Refused,
    Rejected,
    ResultPiece,
    RunTask,
)
from cleave.wire.pieces import PrefixCursor

log = logging.getLogger(__name__)

Payloads = Iterator[tuple[Region, memoryview]]

_ANSWERS = (Finished, Refused, Failed, Cancelled)


@dataclass(frozen=True, slots=True)
class Filling:
    """Rows of a block on their way: its handle there, and the pieces when their turn comes."""

    handle: int
    payloads: Callable[[], Payloads]


@dataclass(slots=True)
class Attempt:
    """A task that this device has: where its returned outputs go, and how far they have come.

    Attributes:
        outputs: What the task makes.
        sinks: Where each goes; None for what is kept.
        cursors: How far each has come.
    """

    outputs: Sequence[TaskOutput]
    sinks: Sequence[torch.Tensor | None]
    cursors: list[PrefixCursor | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Expect every returned output from its first element on."""
        self.cursors = [
            None
            if sink is None
            else PrefixCursor(sink.shape[0], sink.shape[1], sink.element_size())
            for sink in self.sinks
        ]

    @property
    def is_whole(self) -> bool:
        """Whether every element has arrived."""
        return all(cursor is None or cursor.is_full for cursor in self.cursors)

    def write(self, piece: ResultPiece, payload: memoryview) -> None:
        """Put the elements of a piece in their place.

        Raises:
            ProtocolError: If the piece is not the next one of an output of this task.
        """
        sink = self.sinks[piece.output] if piece.output < len(self.sinks) else None
        cursor = self.cursors[piece.output] if piece.output < len(self.sinks) else None
        if sink is None or cursor is None:
            raise ProtocolError(f"task {piece.task_id} returns no output {piece.output}")
        region = Region(piece.row0, piece.row1, piece.col0, piece.col1)
        cursor.advance(region, len(payload))
        write_bytes(sink[region.row0 : region.row1, region.col0 : region.col1], payload)


class Listener(Protocol):
    """Whom a connection tells what its device says."""

    def heard(self, connection: Connection, message: AgentMessage) -> None:
        """Any message but result pieces; a finished task's outputs are whole."""
        ...


class Connection:
    """Frames to and from one device. Used by the server's loop alone."""

    def __init__(
        self, websocket: web.WebSocketResponse, device_id: int, listener: Listener
    ) -> None:
        """Speak over an open socket."""
        self.device_id = device_id
        self.name = ""
        self.socket: socket.socket | None = None
        self.bytes_down = 0
        self.bytes_up = 0
        self.attempts: dict[int, Attempt] = {}
        self._websocket = websocket
        self.listener = listener
        self._outbox: deque[Message | Filling] = deque()
        self._wake = asyncio.Event()
        self._parting = "connection closed"
        self._unanswered: set[int] = set()

    def send(self, message: Message) -> None:
        """Queue a message."""
        self._outbox.append(message)
        self._wake.set()

    def run_task(self, task: RunTask, fillings: Iterable[Filling], attempt: Attempt) -> None:
        """Queue a task, then the rows it lacks."""
        self.attempts[task.task_id] = attempt
        self._unanswered.add(task.task_id)
        self._outbox.append(task)
        self._outbox.extend(fillings)
        self._wake.set()

    def cancel(self, task_id: int) -> None:
        """Queue a cancellation; pieces of the result that still come are ignored."""
        self.attempts.pop(task_id, None)
        self.send(Cancel((task_id,)))

    def drop(self, handles: tuple[int, ...]) -> None:
        """Queue that blocks may be forgotten."""
        self.send(Drop(handles))

    async def write_forever(self) -> None:
        """Send what is queued, in order, as fast as the device takes it."""
        while True:
            while self._outbox:
                item = self._outbox.popleft()
                if isinstance(item, Filling):
                    await self._fill(item)
                else:
                    await self._send_frame(encode(item))
            self._wake.clear()
            await self._wake.wait()

    async def _fill(self, filling: Filling) -> None:
        try:
            for region, payload in filling.payloads():
                piece = Piece(filling.handle, region.row0, region.row1, region.col0, region.col1)
                await self._send_frame(encode(piece, payload))
        except OffloadError:
            # Released before its turn: others have done what it was for, and nobody asks again.
            log.debug("block %s of device %s is needed no more", filling.handle, self.device_id)

    async def read_forever(self) -> str:
        """Hear the device until it goes; why it went.

        Raises:
            ProtocolError: If it breaks the protocol.
        """
        async for frame in self._websocket:
            if frame.type is WSMsgType.BINARY:
                self.bytes_up += len(frame.data)
                message = self._hear(frame.data)
                if isinstance(message, Goodbye):
                    return message.reason
            elif frame.type is WSMsgType.ERROR:
                break
            else:
                raise ProtocolError(f"expected binary frames, got {frame.type.name.lower()}")
        error = self._websocket.exception()
        # A reset is how the end is noticed, no reason for it.
        is_silence = error is not None and not isinstance(error, ConnectionError)
        return f"connection lost: {error}" if is_silence else self._parting

    async def close(self, farewell: Goodbye | Rejected) -> None:
        """Say a last word and close."""
        self._parting = farewell.reason
        try:
            await asyncio.wait_for(self._send_frame(encode(farewell)), 0.5)
            await asyncio.wait_for(self._websocket.close(), 0.5)
        except (OSError, asyncio.TimeoutError, CleaveError):
            log.debug("device %s did not hear the farewell", self.device_id)

    def _hear(self, frame: bytes) -> AgentMessage:
        message, payload = decode_from_agent(frame)
        if isinstance(message, Hello):
            raise ProtocolError("it said hello twice")
        if isinstance(message, (ResultPiece, *_ANSWERS)):
            if message.task_id not in self._unanswered:
                raise ProtocolError(
                    f"{type(message).__name__} for task {message.task_id}, which it does not have"
                )
            attempt = self.attempts.get(message.task_id)
            if isinstance(message, ResultPiece):
                if attempt is not None:
                    attempt.write(message, payload)
                return message
            self._check_answer(message, attempt)
            self._unanswered.discard(message.task_id)
        elif isinstance(message, Paused):
            self.attempts.clear()
        self.listener.heard(self, message)
        return message

    @staticmethod
    def _check_answer(message: AgentMessage, attempt: Attempt | None) -> None:
        if attempt is not None and isinstance(message, Finished) and not attempt.is_whole:
            raise ProtocolError(f"task {message.task_id} finished with its result incomplete")
        if attempt is not None and isinstance(message, Cancelled):
            raise ProtocolError(f"task {message.task_id} was dropped unasked")

    async def _send_frame(self, frame: bytes) -> None:
        self.bytes_down += len(frame)
        await self._websocket.send_bytes(frame)
