"""The server's loop in a thread of its own, and the way into it from other threads."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import ParamSpec, TypeVar

from cleave.compute.choose import load_backend
from cleave.core.scheduling.scheduler import Scheduler
from cleave.errors import CleaveError
from cleave.server.app import App, AppSettings
from cleave.server.connection import Connection
from cleave.server.driver import Driver
from cleave.server.operands import OperandStore
from cleave.wire.buffers import keep_large_buffers

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
_CLOSE_S = 5.0


class ServerThread:
    """A running server. Its `driver` and `app` belong to its loop: reach them by `call` or `post`.

    Raises:
        ConfigError: If the server cannot listen where it should.
    """

    def __init__(
        self,
        settings: AppSettings,
        scheduler: Scheduler,
        store: OperandStore,
        notify: Callable[[str, Connection, str], None],
    ) -> None:
        keep_large_buffers()
        self._loop = _new_loop()
        self._is_closed = False
        started: Future[tuple[Driver, App]] = Future()

        async def open_server() -> tuple[Driver, App]:
            driver = Driver(scheduler, store, load_backend("torch", device="cpu"))
            app = App(settings, driver, notify)
            await app.start()
            return driver, app

        def run() -> None:
            asyncio.set_event_loop(self._loop)
            try:
                started.set_result(self._loop.run_until_complete(open_server()))
            except BaseException as error:  # belongs to the thread that waits
                started.set_exception(error)
            else:
                self._loop.run_forever()
            finally:
                self._loop.close()

        self._thread = threading.Thread(target=run, name="cleave-server", daemon=True)
        self._thread.start()
        self.driver, self.app = started.result()

    @property
    def is_alive(self) -> bool:
        """Whether the loop still runs."""
        return self._thread.is_alive() and not self._is_closed

    def must_be_alive(self) -> None:
        """Return if it is.

        Raises:
            CleaveError: If the server is closed.
        """
        if not self.is_alive:
            raise CleaveError("the fleet is closed: open a new one, or cleave.restore(model)")

    def post(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have a function called on the loop soon; nothing happens once the server is closed."""
        if self.is_alive:
            self._loop.call_soon_threadsafe(lambda: function(*args, **kwargs))

    def call(self, function: Callable[[], T]) -> T:
        """What a function returns when called on the loop.

        Raises:
            CleaveError: If the server is closed.
        """
        if threading.current_thread() is self._thread or not self.is_alive:
            return function()
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(function())
            except BaseException as error:  # belongs to the thread that asked
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        while True:
            try:
                return answer.result(_CLOSE_S)
            except FutureTimeoutError:
                if not self.is_alive:
                    raise CleaveError("the fleet was closed") from None

    def close(self) -> None:
        """Say goodbye to all devices and end the thread; what is under way fails."""
        if self._is_closed:
            return

        async def stop() -> None:
            self.driver.fail_all(CleaveError("the fleet was closed while work was under way"))
            await self.app.stop()
            self.driver.close()

        stopped = asyncio.run_coroutine_threadsafe(stop(), self._loop)
        try:
            stopped.result(_CLOSE_S)
        except FutureTimeoutError:
            log.warning("some devices did not let go in time")
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)

    def abandon(self) -> None:
        """In a forked child: the loop's thread is not here, and its sockets are the parent's."""
        self._is_closed = True
        self.app.abandon_sockets()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
