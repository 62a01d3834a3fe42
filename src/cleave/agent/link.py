"""One WebSocket to a server: messages in and out, within the owner's limits on traffic."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import aiohttp

from cleave.agent.config import AgentConfig
from cleave.agent.pace import Pacer
from cleave.errors import CleaveError, ProtocolError
from cleave.wire.codec import MAX_FRAME_BYTES, Buffer, decode_from_server, encode
from cleave.wire.join import JoinAddress
from cleave.wire.messages import PIECE_BYTES, Message, ServerMessage

CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 0.3
MIN_PIECE_BYTES = 1 << 14


class LinkError(CleaveError):
    """The connection could not be made, or is gone; the text names the stage that failed."""


class Link:
    """Frames over one WebSocket.

    Attributes:
        received_bytes: Of all frames so far.
        sent_bytes: Likewise.
    """

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, downlink: Pacer, uplink: Pacer
    ) -> None:
        self._socket = socket
        self._downlink = downlink
        self._uplink = uplink
        self.received_bytes = 0
        self.sent_bytes = 0

    @property
    def piece_bytes(self) -> int:
        """How large pieces to the server should be: a quarter of a second of a limited uplink."""
        if self._uplink.bytes_per_s is None:
            return PIECE_BYTES
        return min(PIECE_BYTES, max(MIN_PIECE_BYTES, int(self._uplink.bytes_per_s / 4)))

    async def send(self, message: Message) -> None:
        """Send a small message at once.

        Raises:
            LinkError: If the connection is gone.
        """
        await self._write(encode(message))

    async def send_paced(self, message: Message, payload: Buffer) -> None:
        """Send a piece as fast as the owner's limit on the uplink allows.

        Raises:
            LinkError: If the connection is gone.
        """
        frame = encode(message, payload)
        delay_s = self._uplink.delay_s(len(frame), asyncio.get_running_loop().time())
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        await self._write(frame)

    async def ping(self) -> None:
        """Show the server that this side lives, and have it answer.

        Raises:
            LinkError: If the connection is gone.
        """
        try:
            await self._socket.ping()
        except (OSError, aiohttp.ClientError) as error:
            raise LinkError(f"the connection was lost: {_cause(error)}") from error

    async def pong(self, data: bytes) -> None:
        """Answer a ping.

        Raises:
            LinkError: If the connection is gone.
        """
        try:
            await self._socket.pong(data)
        except (OSError, aiohttp.ClientError) as error:
            raise LinkError(f"the connection was lost: {_cause(error)}") from error

    async def receive(self, silence_s: float) -> tuple[ServerMessage, memoryview] | bytes | None:
        """The next message and its payload; or the data of a ping; or None for its answer.

        What exceeds the owner's limit on the downlink waits here, so that TCP slows the server.

        Raises:
            LinkError: If the connection is gone, or nothing came for ``silence_s``.
            ProtocolError: If what came is not a message.
        """
        try:
            received = await self._socket.receive(silence_s)
        except asyncio.TimeoutError:
            raise LinkError(f"the server was silent for {silence_s:.0f} s") from None
        if received.type is aiohttp.WSMsgType.PING:
            return bytes(received.data)
        if received.type is aiohttp.WSMsgType.PONG:
            return None
        if received.type is aiohttp.WSMsgType.TEXT:
            raise ProtocolError("the server sent text, expected binary frames")
        if received.type is not aiohttp.WSMsgType.BINARY:
            raise LinkError(f"the server closed the connection{self._close_reason()}")
        frame: bytes = received.data
        self.received_bytes += len(frame)
        delay_s = self._downlink.delay_s(len(frame), asyncio.get_running_loop().time())
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        return decode_from_server(frame)

    def _close_reason(self) -> str:
        error = self._socket.exception()
        code = self._socket.close_code
        if error is not None:
            return f": {_cause(error)}"
        return f" (code {code})" if code not in (None, aiohttp.WSCloseCode.OK, 1006) else ""

    async def _write(self, frame: bytes) -> None:
        try:
            await self._socket.send_bytes(frame)
        except (OSError, aiohttp.ClientError) as error:
            raise LinkError(f"the connection was lost: {_cause(error)}") from error
        self.sent_bytes += len(frame)


@asynccontextmanager
async def dial(config: AgentConfig) -> AsyncIterator[Link]:
    """A link to the server of ``config``, closed at the end.

    Raises:
        LinkError: If it cannot be made; the text names the stage: name, TCP, TLS or server.
    """
    connector = aiohttp.TCPConnector(limit=0, ssl=_tls(config))
    async with aiohttp.ClientSession(connector=connector) as session:
        try:
            websocket = await asyncio.wait_for(_open(session, config.address), CONNECT_TIMEOUT_S)
        except (OSError, aiohttp.ClientError, asyncio.TimeoutError) as error:
            raise LinkError(explain(error, config.address)) from error
        try:
            yield Link(
                websocket,
                Pacer(config.limit_down_bytes_per_s),
                Pacer(config.limit_up_bytes_per_s),
            )
        finally:
            await websocket.close()


async def _open(
    session: aiohttp.ClientSession, address: JoinAddress
) -> aiohttp.ClientWebSocketResponse:
    websocket = await session.ws_connect(
        address.websocket_url,
        compress=0,
        max_msg_size=MAX_FRAME_BYTES,
        autoping=False,
        timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S),
    )
    return cast("aiohttp.ClientWebSocketResponse", websocket)


def explain(error: Exception, address: JoinAddress) -> str:
    """Why dialling failed, in one line that names the stage and what to look at."""
    where = address.authority
    cause = getattr(error, "os_error", None) or error
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return (
            f"server: {where} answers HTTP {error.status} but takes no devices: "
            "is this the address that the Cleave server printed?"
        )
    if isinstance(error, (aiohttp.ClientSSLError, ssl.SSLError)):
        return f"TLS: {where}: {_cause(error)}; an own certificate is trusted with --ca FILE"
    if isinstance(cause, socket.gaierror) or isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"name: no address is known for {address.host!r}: check the spelling and the network"
    if isinstance(error, asyncio.TimeoutError):
        return f"TCP: {where} does not answer: check the network and the server's firewall"
    if isinstance(cause, ConnectionRefusedError):
        return f"TCP: {where} refuses the connection: is the server running, and on this port?"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return f"server: {where} closed the connection at once: does it want https instead?"
    return f"TCP: {where}: {_cause(cause)}"


def _cause(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def _tls(config: AgentConfig) -> ssl.SSLContext | bool:
    if not config.address.tls:
        return True
    context = ssl.create_default_context()
    if config.ca_file is not None:
        context.load_verify_locations(config.ca_file)
    return context
