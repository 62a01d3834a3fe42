"""The fleet as a training script sees it: devices that have joined, and the work they do."""

from __future__ import annotations

import itertools
import logging
import os
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from types import TracebackType

import torch

from cleave.core.layout import Layout
from cleave.core.matrix import DType, Matrix
from cleave.core.scheduling.events import MatrixReleased
from cleave.core.scheduling.scheduler import Scheduler
from cleave.core.scheduling.settings import SchedulerSettings
from cleave.core.work import Work
from cleave.errors import CleaveError, ConfigError, NoDevicesError
from cleave.server.app import AppSettings
from cleave.server.connection import Connection
from cleave.server.driver import Outcome
from cleave.server.host import host_seconds
from cleave.server.network import addresses, new_token
from cleave.server.operands import OperandStore
from cleave.server.status import DeviceStatus, FleetEvent, FleetStats
from cleave.server.thread import ServerThread
from cleave.wire.join import JoinAddress

log = logging.getLogger(__name__)

_ANY = {"0.0.0.0", "", "::"}
_WITHOUT = ("host", "wait")
_EVENTS_KEPT = 1000
_POLL_S = 0.5
_open_fleets: weakref.WeakSet[Fleet] = weakref.WeakSet()


class Fleet:
    """Devices that have joined, and the work they do. Opens a server in a thread of its own.

    Args:
        host: Address to listen on; ``"0.0.0.0"`` is every network interface.
        port: TCP port; 0 takes a free one.
        token: What devices must know to join; a new one if None.
        wire: Element type on the wire for fp32 models (``"float32"``, ``"bfloat16"`` or
            ``"float16"``); None is the compute type of the model.
        without_devices: ``"host"`` computes what no device can; ``"wait"`` waits for devices.
        heartbeat_s: A device that is silent for one and a half times this is taken for gone.
        max_devices: More are turned away.
        certificate: Paths of a PEM certificate and its key, to speak TLS.

    Raises:
        ConfigError: If an argument is unusable or the port is in use.
    """

    def __init__(
        self,
        host: str = "0.0.0.0",
        port: int = 0,
        token: str | None = None,
        wire: str | None = None,
        *,
        without_devices: str = "host",
        heartbeat_s: float = 10.0,
        max_devices: int = 10_000,
        certificate: tuple[str, str] | None = None,
        settings: SchedulerSettings | None = None,
    ) -> None:
        self.wire = _wire_dtype(wire)
        if without_devices not in _WITHOUT:
            raise ConfigError(f"without_devices is {without_devices!r}, expected one of {_WITHOUT}")
        self.token = token or new_token()
        self.host = host
        self._tls = certificate is not None
        self._store = OperandStore()
        self._events: deque[FleetEvent] = deque(maxlen=_EVENTS_KEPT)
        self._callbacks: list[Callable[[FleetEvent], None]] = []
        self._changed = threading.Condition()
        self._work_ids = itertools.count(1)
        self._n_joined = self._n_left = 0
        self._worth: dict[tuple[object, ...], bool] = {}
        self._scheduler = Scheduler(
            settings or SchedulerSettings(host_steps_in=without_devices == "host")
        )
        self._server = ServerThread(
            AppSettings(
                host=host,
                port=port,
                token=self.token,
                heartbeat_s=heartbeat_s,
                max_devices=max_devices,
                certificate=None if certificate is None else _tls_context(*certificate),
            ),
            self._scheduler,
            self._store,
            self._notify,
        )
        self.port = self._server.app.port
        _open_fleets.add(self)

    def close(self) -> None:
        """Say goodbye to all devices and stop the server; work that is under way fails."""
        self._server.close()
        _open_fleets.discard(self)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Devices -------------------------------------------------------------------------------------

    @property
    def join_url(self) -> str:
        """Where a device joins, for ``cleave join``."""
        return self.join_urls[0]

    @property
    def join_urls(self) -> list[str]:
        """The same for each network interface of this machine."""
        hosts = addresses() if self.host in _ANY else [self.host]
        return [
            JoinAddress(host=host, port=self.port, token=self.token, tls=self._tls).url
            for host in hosts or ["127.0.0.1"]
        ]

    def wait(self, devices: int = 1, timeout: float | None = None) -> None:
        """Return when so many devices are in.

        Raises:
            NoDevicesError: If they are not after ``timeout`` seconds.
            CleaveError: If the fleet is closed.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self.n_devices < devices:
                self._server.must_be_alive()
                left_s = _POLL_S if deadline_s is None else deadline_s - time.monotonic()
                if left_s <= 0:
                    raise NoDevicesError(
                        f"{self.n_devices} of {devices} devices joined within "
                        f"{timeout:g} s: start more with 'cleave join {self.join_url}'"
                    )
                self._changed.wait(min(_POLL_S, left_s))

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return not self._server.is_alive

    @property
    def n_devices(self) -> int:
        """Devices that are in now."""
        return len(self._server.driver.connections)

    @property
    def devices(self) -> list[DeviceStatus]:
        """All devices that are in or were, in the order in which they came."""
        driver = self._server.driver
        statuses = self._server.call(lambda: [*driver.departed, *driver.present()])
        total = sum(status.flops for status in statuses) or 1.0
        return [
            replace(status, share=status.flops / total)
            for status in sorted(statuses, key=lambda status: status.device_id)
        ]

    def stats(self) -> FleetStats:
        """Totals since the fleet was opened."""
        devices = self.devices
        gone = [device for device in devices if device.state == "gone"]
        host = self._server.driver.host_tally
        return FleetStats(
            device_flops=sum(device.flops for device in devices),
            host_flops=host.flops,
            wasted_flops=sum(device.wasted_flops for device in devices),
            redone_tasks=sum(device.open_tasks for device in gone),
            redone_flops=sum(device.open_flops for device in gone),
            device_tasks=sum(device.tasks for device in devices),
            host_tasks=host.tasks,
            bytes_down=sum(device.bytes_down for device in devices),
            bytes_up=sum(device.bytes_up for device in devices),
            planned_bytes=self._server.call(lambda: self._scheduler.snapshot().planned_bytes),
            devices_joined=self._n_joined,
            devices_left=self._n_left,
            matrices=len(self._store),
        )

    def on_event(self, callback: Callable[[FleetEvent], None]) -> None:
        """Have ``callback`` called, on the server's thread, when a device comes, goes, pauses."""
        self._callbacks.append(callback)

    @property
    def events(self) -> list[FleetEvent]:
        """The latest things that happened to devices, oldest first."""
        return list(self._events)

    # Work (the seam of `cleave.train.runtime`) ---------------------------------------------------

    def adopt(self, tensor: torch.Tensor) -> Matrix:
        """Register a contiguous 2-D CPU tensor that will not change until it is released."""
        return self._store.adopt(tensor)

    def allocate(self, n_rows: int, n_cols: int, dtype: DType) -> Matrix:
        """A matrix for work to write."""
        return self._store.allocate(n_rows, n_cols, dtype)

    def tensor(self, matrix: Matrix) -> torch.Tensor:
        """The host's tensor of a matrix."""
        return self._store.tensor(matrix)

    def release(self, matrix: Matrix) -> None:
        """Nobody will read this matrix again. May be called from finalizers."""
        self._store.release(matrix)
        event = MatrixReleased(matrix.tensor_id)
        self._server.post(self._server.driver.tell, event)

    def submit(self, forms: Sequence[Work], *, hints: Sequence[Layout] = ()) -> FleetPending:
        """Start work on the devices.

        Raises:
            CleaveError: If the fleet is closed.
        """
        self._server.must_be_alive()
        future: Future[Outcome] = Future()
        submit = self._server.driver.submit
        self._server.post(submit, next(self._work_ids), tuple(forms), tuple(hints), future)
        return FleetPending(future, self._server)

    def worthwhile(self, forms: Sequence[Work]) -> bool:
        """Whether devices would be done with work sooner than the host."""
        work = forms[0]
        key = (work.name, work.n_rows, work.n_cols, work.flops_per_cell, work.dtype)
        answer = self._worth.get(key)
        if answer is None:
            seconds = self._server.call(lambda: self._scheduler.seconds(forms))
            answer = seconds is not None and seconds < host_seconds(work)
            self._worth[key] = answer
        return answer

    def _notify(self, kind: str, connection: Connection, text: str) -> None:
        """On the server's thread: something happened to a device."""
        event = FleetEvent(
            kind=kind,
            device_id=connection.device_id,
            name=connection.name,
            text=text,
            time_s=time.monotonic(),
        )
        log.info("device %s (%d) %s %s", event.name, event.device_id, kind, text)
        self._events.append(event)
        self._worth.clear()
        self._n_joined += kind == "joined"
        self._n_left += kind == "left"
        for callback in self._callbacks:
            try:
                callback(event)
            except Exception:  # the script's own fault must not cost a device its place
                log.exception("a callback of on_event failed")
        with self._changed:
            self._changed.notify_all()


class FleetPending:
    """Work that a fleet has under way."""

    def __init__(self, future: Future[Outcome], server: ServerThread) -> None:
        """Wait on the driver's future."""
        self._future = future
        self._server = server
        self._outcome: Outcome | None = None
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Return when all results are whole.

        Raises:
            WorkFailedError: If neither devices nor the host could do it.
            CleaveError: If the fleet was closed.
        """
        while not self._future.done():
            try:
                self._future.result(_POLL_S)
            except FutureTimeoutError:
                if not self._server.is_alive:
                    raise CleaveError("the fleet was closed while work was under way") from None
        outcome = self._future.result()
        with self._lock:
            if self._outcome is None:
                outcome.results.finish()
                self._outcome = outcome

    @property
    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._future.done()

    @property
    def form(self) -> int:
        """After `wait`: which of the submitted forms was taken."""
        return self._future.result().form

    @property
    def layout(self) -> Layout:
        """After `wait`: which device did which tile of that form."""
        return self._future.result().layout


def _wire_dtype(text: str | None) -> DType | None:
    if text is None:
        return None
    allowed = [dtype.value for dtype in (DType.F32, DType.BF16, DType.F16)]
    if text not in allowed:
        raise ConfigError(f"wire is {text!r}, expected None or one of {', '.join(allowed)}")
    return DType(text)


def _tls_context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"certificate {certificate!r} with key {key!r} cannot be read: {error}; "
            "expected two PEM files"
        ) from error
    return context


def _abandon_in_child() -> None:
    for fleet in tuple(_open_fleets):
        fleet._server.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_in_child)
