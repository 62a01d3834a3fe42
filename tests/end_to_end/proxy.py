"""A network that can go silent: forwards TCP, and stops without closing anything when told."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

from cleave.wire.join import JoinAddress

_CHUNK_BYTES = 1 << 16


class Flow:
    """One direction of all connections: open, or held once so many bytes more have passed."""

    def __init__(self) -> None:
        self.passed_bytes = 0
        self.is_waiting = False
        self._left: int | None = None
        self._changed = threading.Condition()

    def hold(self, after_bytes: int = 0) -> None:
        """Let ``after_bytes`` pass, then nothing."""
        with self._changed:
            self._left = after_bytes
            self.is_waiting = False

    def release(self) -> None:
        """Let everything pass."""
        with self._changed:
            self._left = None
            self.is_waiting = False
            self._changed.notify_all()

    def take(self, n_bytes: int) -> None:
        """Return when ``n_bytes`` may pass."""
        with self._changed:
            while self._left is not None and self._left <= 0:
                self.is_waiting = True
                self._changed.wait()
            if self._left is not None:
                self._left -= n_bytes
            self.passed_bytes += n_bytes


class Proxy:
    """A port of this machine behind which another lies.

    Attributes:
        down: What devices receive.
        up: What they send.
    """

    def __init__(self, join_url: str) -> None:
        self._address = JoinAddress.parse(join_url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.down, self.up = Flow(), Flow()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def join_url(self) -> str:
        """Where a device joins by way of here."""
        return replace(self._address, port=self._listener.getsockname()[1]).url

    def release(self) -> None:
        """Let everything pass, both ways."""
        self.down.release()
        self.up.release()

    def drop(self) -> None:
        """Close all connections, as when a machine at either end has died."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            _shut(each)
        self.release()

    def close(self) -> None:
        """Take no more connections, and drop those that there are."""
        _shut(self._listener)
        self.drop()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                device, _ = self._listener.accept()
                server = socket.create_connection((self._address.host, self._address.port))
                for each in (device, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [device, server]
                for source, sink, flow in (
                    (server, device, self.down),
                    (device, server, self.up),
                ):
                    threading.Thread(target=_pump, args=(source, sink, flow), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, flow: Flow) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            flow.take(len(data))
            sink.sendall(data)
    _shut(source)
    _shut(sink)


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
