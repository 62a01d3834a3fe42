"""The one port: devices by WebSocket, people by HTTP."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import WSMsgType, web

from cleave import __version__
from cleave.core.device import DeviceProfile
from cleave.errors import (
    AuthError,
    CleaveError,
    ConfigError,
    DeviceError,
    ProtocolError,
    VersionError,
)
from cleave.server.admission import NotNowError, admit
from cleave.server.connection import Connection
from cleave.server.driver import Driver
from cleave.wire.codec import MAX_FRAME_BYTES, decode_from_agent
from cleave.wire.join import DEVICE_PATH, JOIN_PREFIX
from cleave.wire.messages import (
    LONGEST_HEARTBEAT_S,
    MAX_TEXT,
    AgentMessage,
    Goodbye,
    Hello,
    Rejected,
    Welcome,
)

log = logging.getLogger(__name__)

_BACKLOG = 2048
_WRONG_TOKEN = "the join token is wrong: copy the whole join line that the server printed"  # noqa: S105
_LAST_WORDS_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSettings:
    """How a server receives devices.

    Attributes:
        host: Address to listen on.
        port: TCP port; 0 takes a free one.
        token: What a device must know to join.
        heartbeat_s: A device that is silent for this long, and half of it again, is gone.
        max_devices: More are turned away.
        certificate: TLS context, or None for plain text.
        hello_timeout_s: How long a device may take to say who it is,
        admission_timeout_s: and to be tested and measured.

    Raises:
        ConfigError: If a value is out of range; it names the argument.
    """

    host: str
    port: int
    token: str
    heartbeat_s: float
    max_devices: int
    certificate: ssl.SSLContext | None = None
    hello_timeout_s: float = 10.0
    admission_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        """Refuse what no device could join by."""
        if not isinstance(self.port, int) or not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port!r}, expected 0 to 65535 (0 takes a free one)")
        if not 0 < self.heartbeat_s <= LONGEST_HEARTBEAT_S:
            raise ConfigError(
                f"heartbeat_s is {self.heartbeat_s}, "
                f"expected more than 0 and at most {LONGEST_HEARTBEAT_S:.0f}"
            )
        if self.max_devices < 1:
            raise ConfigError(f"max_devices is {self.max_devices}, expected 1 or more")
        if len(self.token) > MAX_TEXT:
            raise ConfigError(
                f"token has {len(self.token)} characters, expected at most {MAX_TEXT}"
            )


class App:
    """Listens, admits devices, and hands what they say to the driver."""

    def __init__(
        self,
        settings: AppSettings,
        driver: Driver,
        notify: Callable[[str, Connection, str], None],
    ) -> None:
        """Serve a driver; ``notify(kind, connection, text)`` hears of devices that come and go."""
        self._settings = settings
        self._driver = driver
        self._notify = notify
        self._next_device_id = 1
        self._open: set[Connection] = set()
        self._runner: web.AppRunner | None = None
        self._listener: socket.socket | None = None
        self.port = settings.port

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            ConfigError: If the address cannot be listened on.
        """
        app = web.Application()
        app.router.add_get(DEVICE_PATH, self._device)
        app.router.add_get("/", self._page)
        app.router.add_get(JOIN_PREFIX + "{token}", self._page)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        settings = self._settings
        try:
            self._listener = _listen(settings.host, settings.port)
        except OSError as error:
            await self._runner.cleanup()
            errno = None if isinstance(error, socket.gaierror) else error.errno
            cause = error.strerror if errno is None else os.strerror(errno)
            raise ConfigError(
                f"cannot listen on {settings.host} port {settings.port}: {cause}; "
                "choose another port (0 takes a free one) or an address of this machine"
            ) from error
        site = web.SockSite(self._runner, self._listener, ssl_context=settings.certificate)
        await site.start()
        self.port = self._listener.getsockname()[1]

    async def stop(self) -> None:
        """Say goodbye to all devices and stop listening, within about a second."""
        farewell = Goodbye("the server has closed")
        await asyncio.gather(*(connection.close(farewell) for connection in tuple(self._open)))
        if self._runner is not None:
            await self._runner.cleanup()

    def abandon_sockets(self) -> None:
        """In a forked child: let go of the parent's sockets without closing them there."""
        nothing = os.open(os.devnull, os.O_RDWR)
        sockets = [self._listener, *(connection.socket for connection in self._open)]
        for inherited in sockets:
            if inherited is not None and inherited.fileno() >= 0:
                # The number stays taken, so that a late close by a finalizer hits nothing else.
                os.dup2(nothing, inherited.fileno())
        os.close(nothing)

    def heard(self, connection: Connection, message: AgentMessage) -> None:
        """What a device that is in says."""
        kind = type(message).__name__.lower()
        if kind in {"paused", "resumed"}:
            self._notify(kind, connection, getattr(message, "reason", ""))
        self._driver.heard(connection, message)

    def _leave(self, connection: Connection, reason: str) -> bool:
        was_in = self._driver.left(connection, reason)
        if was_in:
            self._notify("left", connection, reason)
        return was_in

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._settings.token.encode())

    async def _page(self, request: web.Request) -> web.Response:
        base = f"{request.scheme}://{request.host}"
        given = request.match_info.get("token")
        if given is not None and not self._is_token(given):
            return web.Response(status=403, text=f"{_WRONG_TOKEN}\n")
        token = given or "TOKEN"
        return web.Response(
            text=(
                f"This is a Cleave server (version {__version__}).\n"
                f"To lend this machine, install Cleave from its sources (see its README), then\n"
                f"  cleave join {base}{JOIN_PREFIX}{token}\n"
            )
        )

    async def _device(self, request: web.Request) -> web.WebSocketResponse:
        websocket = web.WebSocketResponse(
            compress=False,
            max_msg_size=MAX_FRAME_BYTES,
            heartbeat=self._settings.heartbeat_s,
            timeout=0.5,
        )
        await websocket.prepare(request)
        connection = Connection(websocket, self._next_device_id, self)
        if request.transport is not None:
            connection.socket = request.transport.get_extra_info("socket")
        self._next_device_id += 1
        self._open.add(connection)
        writer: asyncio.Task[None] | None = None
        reason = "connection closed"
        try:
            hello = await self._hello(websocket)
            connection.name = hello.name or f"device-{connection.device_id}"
            self._welcome(connection)
            writer = asyncio.ensure_future(connection.write_forever())
            reason = await self._serve(connection, hello, writer)
        except (AuthError, DeviceError, ProtocolError, ConfigError, NotNowError) as error:
            reason = str(error)
            if writer is not None:
                writer.cancel()
            if not self._leave(connection, reason):
                self._notify("rejected", connection, reason)
            await connection.close(_rejection(error))
        except (ConnectionError, asyncio.TimeoutError, RuntimeError) as error:
            reason = f"connection lost: {error or type(error).__name__}"
        except Exception:
            log.exception("the connection of %s is closed by our own fault", connection.name)
            reason = "a fault of the server; see its log"
        finally:
            if writer is not None:
                writer.cancel()
            self._open.discard(connection)
            self._leave(connection, reason)
        return websocket

    def _welcome(self, connection: Connection) -> None:
        connection.send(Welcome(connection.device_id, __version__, self._settings.heartbeat_s))

    async def _hello(self, websocket: web.WebSocketResponse) -> Hello:
        within_s = self._settings.hello_timeout_s
        try:
            frame = await websocket.receive(timeout=within_s)
        except asyncio.TimeoutError:
            raise ProtocolError(f"it said no hello within {within_s:g} s") from None
        if frame.type is WSMsgType.TEXT:
            raise ProtocolError("expected a hello in a binary frame, got text")
        if frame.type is not WSMsgType.BINARY:
            raise ConnectionError("closed before it said hello")
        message, _ = decode_from_agent(frame.data)
        if not isinstance(message, Hello):
            raise ProtocolError(f"expected a hello first, got {type(message).__name__}")
        if not self._is_token(message.token):
            raise AuthError(_WRONG_TOKEN)
        if len(self._open) > self._settings.max_devices:
            raise ConfigError(f"the server takes {self._settings.max_devices} devices at most")
        return message

    async def _serve(self, connection: Connection, hello: Hello, writer: asyncio.Task[None]) -> str:
        reader = asyncio.ensure_future(connection.read_forever())
        admission = asyncio.ensure_future(self._admit(connection, hello))
        tasks = {reader, admission, writer}
        try:
            while True:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if admission in done:
                    admission.result()
                    tasks.discard(admission)
                if reader in done:
                    return reader.result()
                if writer in done:
                    # What the device said before it went, a goodbye perhaps, is still to be read.
                    await asyncio.wait({reader}, timeout=_LAST_WORDS_S)
                    if not (reader.done() and isinstance(writer.exception(), ConnectionError)):
                        writer.result()
                    return reader.result()
        finally:
            for task in (reader, admission):
                task.cancel()

    async def _admit(self, connection: Connection, hello: Hello) -> None:
        within_s = self._settings.admission_timeout_s
        admission = admit(connection, hello, self._driver.largest)
        try:
            profile: DeviceProfile = await asyncio.wait_for(admission, within_s)
        except asyncio.TimeoutError:
            raise NotNowError(f"the tests were not done within {within_s:g} s") from None
        self._driver.joined(connection, profile)
        self._notify("joined", connection, "")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    every = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=every)


def _rejection(error: CleaveError) -> Rejected:
    if isinstance(error, AuthError):
        return Rejected("token", str(error), retry=False)
    if isinstance(error, VersionError):
        return Rejected("protocol", str(error), retry=False)
    if isinstance(error, DeviceError):
        return Rejected("selftest", str(error), retry=False)
    if isinstance(error, ConfigError):
        return Rejected("full", str(error), retry=True)
    if isinstance(error, NotNowError):
        return Rejected("selftest", str(error), retry=True)
    return Rejected("protocol", str(error), retry=True)
