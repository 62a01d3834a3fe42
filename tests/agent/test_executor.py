"""Jobs run one at a time in order, end exactly once, and a cancelled one has no effect."""

import queue
from collections.abc import Iterator

import numpy as np
import pytest
from tests.agent.gated import BOUND_S, GatedBackend
from tests.agent.tasks import UNKNOWN, added, block, gemm, kept, returned

from cleave.agent.executor import Executor, Outcome, error_text
from cleave.agent.jobs import Job, JobBook
from cleave.agent.store import BlockStore
from cleave.compute import load_backend
from cleave.compute.backend import Backend
from cleave.core.matrix import Region
from cleave.errors import DeviceError
from cleave.wire.messages import OutputSpec, RunTask

LEFT = np.arange(12, dtype=np.float32).reshape(4, 3)
RIGHT = np.arange(15, dtype=np.float32).reshape(3, 5)


class Bench:
    """A store with both operands, an executor, and what it delivers."""

    def __init__(self, backend: Backend) -> None:
        self.store = BlockStore(backend, 1 << 20)
        self.book = JobBook(self.store)
        self.executor = Executor(backend)
        self.outcomes: queue.Queue[Outcome] = queue.Queue()

    def job(self, task_id: int, output: OutputSpec | None = None, *, priority: int = 0) -> Job:
        a, b = block(1, 4, 3), block(2, 3, 5)
        return self.job_of(gemm(task_id, a, b, output, priority=priority))

    def job_of(self, task: RunTask) -> Job:
        assert self.book.accept(task) == []
        for handle, array in ((1, LEFT), (2, RIGHT)):
            piece = Region(0, array.shape[0], 0, array.shape[1])
            self.store.fill(handle, piece, array.data.cast("B"))
        return next(job for job in self.book.take_ready() if job.task_id == task.task_id)

    def submit(self, job: Job) -> None:
        self.executor.submit(job, self.outcomes.put)

    def outcome(self) -> Outcome:
        return self.outcomes.get(timeout=BOUND_S)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(load_backend("numpy"))
    yield bench
    bench.executor.close()


@pytest.fixture
def gated() -> GatedBackend:
    return GatedBackend()


@pytest.fixture
def gated_bench(gated: GatedBackend) -> Iterator[Bench]:
    bench = Bench(gated)
    yield bench
    bench.executor.close()
    for _ in range(10):
        gated.permits.release()


def values(data: memoryview | None, n_rows: int, n_cols: int) -> np.ndarray:
    assert data is not None
    return np.frombuffer(data, np.float32).reshape(n_rows, n_cols)


def test_a_result_is_the_product(bench: Bench) -> None:
    bench.submit(bench.job(1))
    outcome = bench.outcome()
    np.testing.assert_array_equal(values(outcome.results[0], 4, 5), LEFT @ RIGHT)
    assert outcome.error is None
    assert outcome.compute_s > 0


def test_ready_jobs_run_by_priority_then_by_arrival(
    gated: GatedBackend, gated_bench: Bench
) -> None:
    jobs = [gated_bench.job(i, priority=p) for i, p in enumerate((0, 5, 1, 5, 1))]
    gated_bench.submit(jobs[0])
    assert gated.started.acquire(timeout=BOUND_S)
    for job in jobs[1:]:
        gated_bench.submit(job)
    for _ in jobs:
        gated.permits.release()
    assert [gated_bench.outcome().job.task_id for _ in jobs] == [0, 2, 4, 1, 3]


def test_a_queued_job_is_cancelled_without_a_trace(gated: GatedBackend, gated_bench: Bench) -> None:
    running, queued = gated_bench.job(1), gated_bench.job(2)
    gated_bench.submit(running)
    assert gated.started.acquire(timeout=BOUND_S)
    gated_bench.submit(queued)
    assert gated_bench.executor.cancel(queued)
    gated.permits.release()
    assert gated_bench.outcome().job is running
    assert gated_bench.executor.wait_idle(BOUND_S)
    assert gated_bench.outcomes.empty()


def test_a_running_job_that_is_cancelled_changes_no_block(
    gated: GatedBackend, gated_bench: Bench
) -> None:
    job = gated_bench.job(1, kept(3, 4, 5))
    gated_bench.submit(job)
    assert gated.started.acquire(timeout=BOUND_S)
    assert not gated_bench.executor.cancel(job)
    gated.permits.release()
    outcome = gated_bench.outcome()
    assert outcome.cancelled
    assert job.targets[0] is not None
    assert job.targets[0].array is None


def test_kept_outputs_are_copies_and_sums_add_up(bench: Bench) -> None:
    for task_id in (1, 2, 3):
        job = bench.job(task_id, added(3, 4, 5))
        bench.submit(job)
        assert bench.outcome().results == (None,)
        bench.book.made(job)
    total = bench.store.get(3)
    assert total is not None
    np.testing.assert_array_equal(total.array, 3 * (LEFT @ RIGHT))


def test_an_unknown_op_fails_in_one_line_and_the_thread_goes_on(bench: Bench) -> None:
    a, b = block(1, 4, 3), block(2, 3, 5)
    bench.submit(bench.job_of(gemm(1, a, b, program=UNKNOWN)))
    error = bench.outcome().error
    assert error is not None
    assert error_text(error).startswith("ProgramError: ")
    assert "launch" in error_text(error)
    bench.submit(bench.job(2))
    assert bench.outcome().error is None


def test_an_output_of_another_size_than_promised_fails(bench: Bench) -> None:
    bench.submit(bench.job(1, returned(5, 4)))
    error = bench.outcome().error
    assert isinstance(error, DeviceError)
    assert "came out as 4 x 5, expected 5 x 4" in str(error)


def test_an_error_text_is_one_short_line() -> None:
    assert error_text(ValueError("first\nsecond")) == "ValueError: first"
    assert len(error_text(ValueError("x" * 10_000))) == 4096
    assert error_text(ValueError()) == "ValueError: "
