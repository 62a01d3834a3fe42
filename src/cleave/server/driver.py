"""Feeds the scheduler with events, keeps its one timer, and carries out its commands."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Union

import torch

from cleave.compute.backend import Backend
from cleave.compute.torch_types import DTYPES
from cleave.core.device import DeviceProfile
from cleave.core.layout import Layout
from cleave.core.matrix import DType
from cleave.core.scheduling.events import (
    AcceptResult,
    CancelTask,
    CloseDevice,
    CompleteWork,
    DeadlinePassed,
    DeviceJoined,
    DeviceLeft,
    DevicePaused,
    DeviceResumed,
    DropBlocks,
    Event,
    FailWork,
    HostFailed,
    HostFinished,
    RunOnHost,
    SendTask,
    TaskCancelled,
    TaskFailed,
    TaskFinished,
    TaskRefused,
    WorkSubmitted,
)
from cleave.core.scheduling.scheduler import Scheduler
from cleave.core.scheduling.settings import HOST
from cleave.core.work import Task, TaskOutput, Work
from cleave.errors import WorkFailedError
from cleave.server.connection import Attempt, Connection, Filling
from cleave.server.operands import OperandStore, WorkResults, as_bytes, write_bytes
from cleave.server.status import DeviceStatus, device_status
from cleave.wire.messages import (
    AgentMessage,
    Cancelled,
    Failed,
    Finished,
    InputSpec,
    OutputSpec,
    Paused,
    Refused,
    Rejected,
    Resumed,
    RunTask,
)

log = logging.getLogger(__name__)

_DEPARTED_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """How work was done: the form taken, the layout, and its results, still to be added up."""

    form: int
    layout: Layout
    results: WorkResults


@dataclass(slots=True)
class _Underway:
    future: Future[Outcome]
    results: WorkResults


_Arrived = tuple[Sequence[TaskOutput], Sequence[Union[torch.Tensor, None]]]


@dataclass(slots=True)
class HostTally:
    """What the host has done in place of devices."""

    tasks: int = 0
    flops: float = 0.0


class Driver:
    """Stands between the scheduler, which only decides, and the world; on the server's loop.

    Attributes:
        scheduler: Which decides.
        connections: Of the devices that are in, by id.
        departed: The last status of those that left.
        host_tally: What the host has done in place of devices.
        largest: The largest m, n and k of all GEMMs so far; newcomers are tested with them.
    """

    def __init__(self, scheduler: Scheduler, store: OperandStore, host: Backend) -> None:
        """Drive a scheduler over a store's tensors; ``host`` computes what no device can."""
        self.scheduler = scheduler
        self.connections: dict[int, Connection] = {}
        self.departed: deque[DeviceStatus] = deque(maxlen=_DEPARTED_KEPT)
        self.host_tally = HostTally()
        self.largest = (1, 1, 1)
        self._store = store
        self._host = host
        self._host_thread = ThreadPoolExecutor(1, thread_name_prefix="cleave-host")
        self._loop = asyncio.get_running_loop()
        self._underway: dict[int, _Underway] = {}
        self._arrived: dict[tuple[int, int], _Arrived] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._events: deque[Event] = deque()
        self._is_handling = False
        self._fault: WorkFailedError | None = None
        self._is_alone = False
        self._unable: set[tuple[frozenset[str], DType]] = set()
        self._carry_out: dict[type, Callable[..., None]] = {
            SendTask: self._send_task,
            CancelTask: self._cancel_task,
            DropBlocks: self._drop_blocks,
            AcceptResult: self._accept_result,
            RunOnHost: self._run_on_host,
            CompleteWork: self._complete_work,
            FailWork: self._fail_work,
            CloseDevice: self._close_device,
        }

    def submit(
        self,
        work_id: int,
        forms: tuple[Work, ...],
        hints: tuple[Layout, ...],
        future: Future[Outcome],
    ) -> None:
        """Start work; the future is resolved when it is complete."""
        if self._fault is not None:
            future.set_exception(self._fault)
            return
        self._underway[work_id] = _Underway(future, WorkResults(self._store))
        self._remember_size(forms[0])
        self.tell(WorkSubmitted(work_id, forms, hints))
        self._say_if_alone()
        self._say_if_unable(forms[0])

    def _say_if_alone(self) -> None:
        """Tell people, once each time, that there is work and no device."""
        is_alone = not self.connections
        if is_alone and not self._is_alone:
            steps_in = self.scheduler.settings.host_steps_in
            what = "the host computes alone" if steps_in else "work waits"
            log.warning("no device is here: %s until one joins", what)
        self._is_alone = is_alone

    def _say_if_unable(self, work: Work) -> None:
        """Tell people, once for each kind of work, that none of the devices here can do it."""
        kind = (work.ops, work.dtype)
        if not self.connections or kind in self._unable:
            return
        if not self.scheduler.is_able(work):
            self._unable.add(kind)
            steps_in = self.scheduler.settings.host_steps_in
            what = "the host does it" if steps_in else "it waits for one that can"
            ops = ", ".join(sorted(work.ops))
            log.warning(
                "no device here can do %s in %s (%s): %s", work.name, kind[1].value, ops, what
            )

    def _remember_size(self, work: Work) -> None:
        if [op.name for op in work.program.ops if op.name != "t"] == ["mm"]:
            sizes = (work.n_rows, work.n_cols, int(work.flops_per_cell / 2))
            m, n, k = (max(pair) for pair in zip(self.largest, sizes, strict=True))
            self.largest = (m, n, k)

    def joined(self, connection: Connection, profile: DeviceProfile) -> None:
        """A device has passed admission."""
        self.connections[connection.device_id] = connection
        self._unable.clear()
        self.tell(DeviceJoined(profile))

    def left(self, connection: Connection, reason: str) -> bool:
        """A device's connection is gone; whether it was in until now."""
        connection.attempts.clear()
        if self.connections.pop(connection.device_id, None) is None:
            return False
        views = self.scheduler.snapshot().devices
        for view in views:
            if view.device_id == connection.device_id:
                self.departed.append(device_status(view, connection, state="gone", reason=reason))
        self.tell(DeviceLeft(connection.device_id, reason))
        if self._underway:
            self._say_if_alone()
        return True

    def present(self) -> list[DeviceStatus]:
        """The devices that are in now."""
        views = self.scheduler.snapshot().devices
        return [
            device_status(view, self.connections[view.device_id], view.state, view.reason)
            for view in views
        ]

    def heard(self, connection: Connection, message: AgentMessage) -> None:
        """What a device says, as events."""
        device_id = connection.device_id
        if isinstance(message, Finished):
            attempt = connection.attempts.pop(message.task_id, None)
            if attempt is not None:
                self._arrived[device_id, message.task_id] = (attempt.outputs, attempt.sinks)
            self.tell(TaskFinished(device_id, message.task_id, message.compute_s))
            self._arrived.pop((device_id, message.task_id), None)
        elif isinstance(message, Refused):
            connection.attempts.pop(message.task_id, None)
            log.info("%s refused a task: %s", connection.name, message.reason)
            self.tell(TaskRefused(device_id, message.task_id, message.reason, message.missing))
        elif isinstance(message, Failed):
            connection.attempts.pop(message.task_id, None)
            log.warning("a task failed on %s: %s", connection.name, message.error)
            self.tell(TaskFailed(device_id, message.task_id, message.error))
        elif isinstance(message, Cancelled):
            self.tell(TaskCancelled(device_id, message.task_id))
        elif isinstance(message, Paused):
            self.tell(DevicePaused(device_id, message.reason))
        elif isinstance(message, Resumed):
            self.tell(DeviceResumed(device_id))

    def tell(self, event: Event) -> None:
        """Hand an event to the scheduler and do what it says. Events met on the way come after.

        After a fault of the scheduler nothing is handed to it any more: its state may be wrong, and
        no training at all is better than wrong training.
        """
        if self._fault is not None:
            return
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                commands = self.scheduler.handle(self._events.popleft(), self._loop.time())
                for command in commands:
                    self._carry_out[type(command)](command)
            self._set_timer()
        except Exception as error:
            log.exception("the scheduler failed")
            self._fault = WorkFailedError(
                f"the scheduler failed: {error!r}; see the log, "
                "then close this fleet and open another"
            )
            self._events.clear()
            self.fail_all(self._fault)
        finally:
            self._is_handling = False

    def fail_all(self, error: Exception) -> None:
        """Nobody shall wait any longer."""
        for underway in self._underway.values():
            if not underway.future.done():
                underway.future.set_exception(error)
        self._underway.clear()

    def close(self) -> None:
        """Stop the timer and the host's thread."""
        if self._timer is not None:
            self._timer.cancel()
        self._host_thread.shutdown(wait=False, cancel_futures=True)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_s = self.scheduler.next_deadline_s()
        if deadline_s is not None:
            when_s = max(deadline_s, self._loop.time() + 0.001)
            self._timer = self._loop.call_at(when_s, self.tell, DeadlinePassed())

    # Commands ------------------------------------------------------------------------------------

    def _send_task(self, command: SendTask) -> None:
        connection = self.connections[command.device_id]
        task = command.task
        underway = self._underway.get(command.work_id)
        results = WorkResults(self._store) if underway is None else underway.results
        fillings = [
            Filling(fill.handle, partial(self._store.payloads, fill.block, fill.row0, fill.row1))
            for fill in command.fills
        ]
        attempt = Attempt(task.outputs, results.sinks(task.outputs))
        connection.run_task(run_task_message(command), fillings, attempt)

    def _cancel_task(self, command: CancelTask) -> None:
        self.connections[command.device_id].cancel(command.task_id)

    def _drop_blocks(self, command: DropBlocks) -> None:
        self.connections[command.device_id].drop(command.handles)

    def _accept_result(self, command: AcceptResult) -> None:
        outputs, sinks = self._arrived.pop((command.device_id, command.task_id))
        underway = self._underway.get(command.work_id)
        if underway is not None:
            underway.results.accept(command.tile, outputs, sinks)

    def _run_on_host(self, command: RunOnHost) -> None:
        future = self._loop.run_in_executor(self._host_thread, self._compute, command.task)
        future.add_done_callback(partial(self._host_done, command))

    def _compute(self, task: Task) -> list[torch.Tensor]:
        inputs = []
        for need in task.inputs:
            view = need.view
            whole = self._store.tensor(need.block.matrix)
            inputs.append(whole[view.row0 : view.row1, view.col0 : view.col1])
        return run_on(self._host, task, inputs)

    def _host_done(self, command: RunOnHost, done: asyncio.Future[list[torch.Tensor]]) -> None:
        task = command.task
        if done.cancelled():
            return
        error = done.exception()
        underway = self._underway.get(command.work_id)
        if error is not None:
            self.tell(HostFailed(task.task_id, f"{type(error).__name__}: {error}"))
        elif underway is not None:
            sinks = underway.results.put(task.outputs, done.result())
            self._arrived[HOST, task.task_id] = (task.outputs, sinks)
            self.host_tally.tasks += 1
            self.host_tally.flops += task.flops
            self.tell(HostFinished(task.task_id))
            self._arrived.pop((HOST, task.task_id), None)

    def _complete_work(self, command: CompleteWork) -> None:
        underway = self._underway.pop(command.work_id, None)
        if underway is not None and not underway.future.done():
            underway.future.set_result(Outcome(command.form, command.layout, underway.results))

    def _fail_work(self, command: FailWork) -> None:
        underway = self._underway.pop(command.work_id, None)
        if underway is not None and not underway.future.done():
            underway.future.set_exception(WorkFailedError(command.error))

    def _close_device(self, command: CloseDevice) -> None:
        connection = self.connections.get(command.device_id)
        if connection is not None:
            log.warning("parting with %s: %s", connection.name, command.reason)
            farewell = Rejected("failing", command.reason, retry=False)
            self._loop.create_task(connection.close(farewell))


def run_task_message(command: SendTask) -> RunTask:
    """The message that carries a task."""
    task = command.task
    fill_from = {fill.handle: fill.row0 for fill in command.fills}
    inputs = []
    for handle, need in zip(command.handles, task.inputs, strict=True):
        block = need.block.region
        view = need.view.within(block)
        inputs.append(
            InputSpec(
                handle,
                block.n_rows,
                block.n_cols,
                need.block.matrix.dtype,
                view.row0,
                view.row1,
                view.col0,
                view.col1,
                fill_from.get(handle, view.row1),
            )
        )
    outputs = tuple(
        OutputSpec(
            output.fate,
            handle,
            output.block.region.n_rows,
            output.block.region.n_cols,
            output.block.matrix.dtype,
        )
        for handle, output in zip(command.output_handles, task.outputs, strict=True)
    )
    return RunTask(
        task.task_id, task.program, tuple(inputs), outputs, task.workspace_bytes, task.priority
    )


def run_on(backend: Backend, task: Task, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A task's outputs, computed by a backend of this machine."""
    arrays = []
    for tensor, need in zip(inputs, task.inputs, strict=True):
        whole = need.view.within(need.view)
        array = backend.empty(whole.n_rows, whole.n_cols, need.block.matrix.dtype)
        backend.write(array, whole, as_bytes(tensor.contiguous()))
        arrays.append(array)
    results = []
    for array, output in zip(backend.run(task.program, arrays), task.outputs, strict=True):
        dtype, region = output.block.matrix.dtype, output.block.region
        result = torch.empty(region.n_rows, region.n_cols, dtype=DTYPES[dtype])
        write_bytes(result, backend.read(array, dtype))
        results.append(result)
    return results
