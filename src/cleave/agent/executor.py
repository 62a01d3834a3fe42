"""The one thread that computes: ready jobs in order of priority, then of arrival."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from cleave.agent.jobs import Job
from cleave.agent.store import Block
from cleave.compute.backend import Array, Backend
from cleave.core.matrix import Region
from cleave.core.work import Fate
from cleave.errors import DeviceError
from cleave.wire.messages import MAX_TEXT, OutputSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended.

    Attributes:
        job: The job.
        results: Each output's elements, row-major; None for outputs that stay on the device, and
            all None unless it succeeded.
        compute_s: Seconds from reading the inputs to having the results as bytes.
        error: What went wrong, None if it succeeded or was cancelled.
        cancelled: Whether it was cancelled before it had an effect.
    """

    job: Job
    results: tuple[memoryview | None, ...] = ()
    compute_s: float = 0.0
    error: Exception | None = None
    cancelled: bool = False


Deliver = Callable[[Outcome], None]


class Executor:
    """Runs jobs one at a time on a daemon thread; arithmetic releases the interpreter's lock.

    Every submitted job is delivered exactly once, on that thread, unless `cancel` says otherwise.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._changed = threading.Condition()
        self._queue: list[tuple[int, int, Job, Deliver]] = []
        self._arrivals = itertools.count()
        self._running: Job | None = None
        self._is_kept = False
        self._cancelled = False
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="cleave-compute", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a job is running or queued."""
        with self._changed:
            return self._running is not None or bool(self._queue)

    def submit(self, job: Job, deliver: Deliver) -> None:
        """Queue a job whose inputs are all there; ``deliver`` is called on the thread."""
        with self._changed:
            entry = (job.task.priority, next(self._arrivals), job, deliver)
            heapq.heappush(self._queue, entry)
            self._changed.notify_all()

    def cancel(self, job: Job) -> bool:
        """Take a job out of the queue, or see to it that the running one has no effect.

        Returns:
            True if it was queued: it is gone and will not be delivered. False otherwise: it is
            delivered when it ends, as cancelled unless it had taken effect already.
        """
        with self._changed:
            for index, entry in enumerate(self._queue):
                if entry[2] is job:
                    del self._queue[index]
                    heapq.heapify(self._queue)
                    self._changed.notify_all()
                    return True
            if self._running is job and not self._is_kept:
                self._cancelled = True
            return False

    def wait_idle(self, timeout_s: float) -> bool:
        """Whether nothing runs or is queued, waiting for that at most ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._running is None and not self._queue, timeout_s
            )

    def close(self) -> None:
        """Forget the queue and end the thread after the running job, if any."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._cancelled = True
            self._changed.notify_all()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._queue)
                if self._closed:
                    return
                _, _, job, deliver = heapq.heappop(self._queue)
                self._running, self._is_kept, self._cancelled = job, False, False
            outcome = self._run(job)
            with self._changed:
                self._running = None
                self._changed.notify_all()
            deliver(outcome)
            del job, outcome, deliver

    def _run(self, job: Job) -> Outcome:
        started_s = time.perf_counter()
        try:
            inputs = [self._backend.view(block.array, view) for block, view in job.inputs]
            arrays = self._backend.run(job.task.program, inputs)
            specs = job.task.outputs
            for index, (spec, array) in enumerate(zip(specs, arrays, strict=True)):
                _check_shape(index, spec, array)
            results = tuple(
                self._backend.read(array, spec.dtype) if spec.fate is Fate.RETURNED else None
                for spec, array in zip(specs, arrays, strict=True)
            )
            self._backend.synchronize()
            with self._changed:
                if self._cancelled:
                    return Outcome(job=job, cancelled=True)
                self._is_kept = True
            for spec, array, target in zip(specs, arrays, job.targets, strict=True):
                if target is not None:
                    self._put(target, spec, array)
        except Exception as error:  # whatever a task does, the thread goes on
            return Outcome(job=job, error=error, cancelled=self._cancelled)
        return Outcome(job=job, results=results, compute_s=time.perf_counter() - started_s)

    def _put(self, target: Block, spec: OutputSpec, array: Array) -> None:
        if spec.fate is Fate.ADDED and target.array is not None:
            self._backend.add(target.array, array)
            return
        # Copied: an output may be a view of an input, and of another type than the block's.
        copy = self._backend.empty(spec.n_rows, spec.n_cols, spec.dtype)
        whole = Region(0, spec.n_rows, 0, spec.n_cols)
        self._backend.write(copy, whole, self._backend.read(array, spec.dtype))
        target.array = copy


def error_text(error: Exception) -> str:
    """An error as one line that may travel."""
    first_line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first_line}"[:MAX_TEXT]


def _check_shape(index: int, spec: OutputSpec, array: Array) -> None:
    shape = tuple(array.shape)
    if shape != (spec.n_rows, spec.n_cols):
        raise DeviceError(
            f"output {index} came out as {' x '.join(map(str, shape))}, "
            f"expected {spec.n_rows} x {spec.n_cols}"
        )
