"""The scheduler as facts in, commands out; the clock is a number."""

from __future__ import annotations

from typing import TypeVar

import pytest

from cleave.core.device import DeviceProfile
from cleave.core.matrix import DType, Matrix
from cleave.core.operations import Gemm
from cleave.core.program import Op, Program, Ref
from cleave.core.scheduling.events import (
    AcceptResult,
    CancelTask,
    CloseDevice,
    Command,
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
    MatrixReleased,
    RunOnHost,
    SendTask,
    TaskCancelled,
    TaskFailed,
    TaskFinished,
    TaskRefused,
    WorkSubmitted,
)
from cleave.core.scheduling.scheduler import Scheduler
from cleave.core.scheduling.settings import HOST, SchedulerSettings
from cleave.core.work import Along, Fate, Operand, Result, Work

C = TypeVar("C")


class Story:
    """A scheduler, its clock, and every command so far; invariants hold after each event."""

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        self.scheduler = Scheduler(settings)
        self.now_s = 0.0
        self.commands: list[Command] = []

    def tell(self, event: Event, after_s: float = 0.001) -> list[Command]:
        self.now_s += after_s
        commands = self.scheduler.handle(event, self.now_s)
        self.scheduler.check()
        self.commands += commands
        return commands

    def join(self, *device_ids: int, flops_per_s: float = 1e9, memory_bytes: int = 1 << 30) -> None:
        for device_id in device_ids:
            self.tell(
                DeviceJoined(
                    DeviceProfile(
                        device_id=device_id,
                        flops_per_s={DType.F32: flops_per_s},
                        memory_bytes=memory_bytes,
                    )
                )
            )

    def has(self, device_id: int) -> tuple[int, ...]:
        """Tasks that a device has now."""
        views = self.scheduler.snapshot().devices
        return next(view.sent for view in views if view.device_id == device_id)

    def finish_all(self) -> None:
        """Every device does all it has, again and again, until nothing is left."""
        for _ in range(10_000):
            sent = [(v.device_id, t) for v in self.scheduler.snapshot().devices for t in v.sent]
            if not sent:
                return
            for device_id, task_id in sent:
                self.tell(TaskFinished(device_id, task_id, 0.01), after_s=0.01)
        raise AssertionError("the work does not end")

    def of(self, kind: type[C]) -> list[C]:
        return [command for command in self.commands if isinstance(command, kind)]


_next_id = iter(range(1, 1_000_000))


def matrix(n_rows: int, n_cols: int) -> Matrix:
    return Matrix(next(_next_id), n_rows, n_cols, DType.F32)


def gemm(m: int = 64, n: int = 64, k: int = 64) -> tuple[Work, ...]:
    a, b, out = matrix(m, k), matrix(k, n), matrix(m, n)
    return Gemm(name="forward", a=a, b=b, out=out).forms()


def submitted(work_id: int, *forms: Work) -> WorkSubmitted:
    return WorkSubmitted(work_id, forms or gemm())


def test_work_is_complete_when_every_cell_was_accepted() -> None:
    story = Story()
    story.join(1, 2)
    story.tell(submitted(7))
    assert story.has(1)
    assert story.has(2)
    story.finish_all()
    assert [c.work_id for c in story.of(CompleteWork)] == [7]
    assert not story.scheduler.snapshot().works


def test_work_of_no_cells_is_complete_at_once() -> None:
    story = Story()
    story.join(1)
    assert story.tell(submitted(7, *gemm(m=0))) == [CompleteWork(7, 0, ())]


def test_without_devices_the_host_computes() -> None:
    story = Story()
    (command,) = story.tell(submitted(7))
    assert isinstance(command, RunOnHost)
    commands = story.tell(HostFinished(command.task.task_id))
    assert commands[0] == AcceptResult(HOST, command.task.task_id, 7, gemm()[0].whole)
    assert commands[1] == CompleteWork(7, 0, ())


def test_without_devices_work_waits_if_the_host_may_not_step_in() -> None:
    story = Story(SchedulerSettings(host_steps_in=False))
    assert story.tell(submitted(7)) == []
    story.join(1)
    story.finish_all()
    assert [c.work_id for c in story.of(CompleteWork)] == [7]


def test_a_lost_device_costs_only_its_own_unfinished_tasks() -> None:
    story = Story()
    story.join(1, 2, 3)
    story.tell(submitted(7))
    kept = {(c.device_id, c.task.task_id) for c in story.of(SendTask) if c.device_id != 3}
    story.tell(DeviceLeft(3, "pulled"))
    assert not [c for c in story.of(CancelTask)]
    story.finish_all()
    accepted = {(c.device_id, c.task_id) for c in story.of(AcceptResult)}
    assert kept <= accepted
    assert all(device_id in {1, 2} for device_id, _ in accepted)
    assert len(story.of(CompleteWork)) == 1


def test_losing_all_devices_leaves_the_rest_to_the_host() -> None:
    story = Story()
    story.join(1)
    story.tell(submitted(7))
    story.tell(DeviceLeft(1, "pulled"))
    for command in story.of(RunOnHost):
        story.tell(HostFinished(command.task.task_id))
    assert len(story.of(CompleteWork)) == 1


def test_what_a_lost_device_had_of_slabs_is_cut_anew_within_them() -> None:
    story = Story()
    story.join(1, 2, 3, 4)
    work = gemm(m=64, n=60, k=50)[0].in_slabs(3)
    story.tell(submitted(7, work))
    story.tell(DeviceLeft(4, "pulled"))
    story.tell(DeviceLeft(3, "pulled"))
    story.finish_all()
    tiles = [c.tile for c in story.of(AcceptResult)]
    assert sum(tile.area for tile in tiles) == work.whole.area
    assert all(any(slab.contains(tile) for slab in work.rectangles) for tile in tiles)
    assert len(story.of(CompleteWork)) == 1


def test_without_devices_the_host_computes_slab_by_slab() -> None:
    story = Story()
    work = gemm(k=50)[0].in_slabs(3)
    story.tell(submitted(7, work))
    commands = story.of(RunOnHost)
    assert [c.task.inputs[1].view.n_rows for c in commands] == [17, 17, 16]
    for command in commands:
        story.tell(HostFinished(command.task.task_id))
    assert len(story.of(CompleteWork)) == 1


def test_a_device_that_turns_out_slow_is_given_less() -> None:
    story = Story(SchedulerSettings(replan_s=0.0))
    story.join(1, 2, flops_per_s=1e10)

    def cells(work_id: int) -> dict[int, int]:
        story.tell(submitted(work_id, *gemm(m=512, n=512, k=512)))
        for _ in range(200):
            sent = [(v.device_id, t) for v in story.scheduler.snapshot().devices for t in v.sent]
            for device_id, task_id in sent:
                story.tell(TaskFinished(device_id, task_id, 0.5 if device_id == 1 else 0.05))
        (done,) = [c for c in story.of(CompleteWork) if c.work_id == work_id]
        shares: dict[int, int] = {}
        for placement in done.layout:
            area = shares.get(placement.device_id, 0) + placement.tile.area
            shares[placement.device_id] = area
        return shares

    before = cells(1)
    for work_id in range(2, 30):
        cells(work_id)
    after = cells(30)
    assert before[1] == before[2]
    assert after.get(1, 0) < after[2] / 2


def test_a_newcomer_in_mid_work_gets_waiting_strips() -> None:
    story = Story(SchedulerSettings(strip_s=0.001, window_s=0.0))
    story.join(1)
    story.tell(submitted(7, *gemm(m=512, n=256)))
    story.join(2)
    assert story.has(2)
    story.finish_all()
    assert len(story.of(CompleteWork)) == 1


def test_a_silent_device_is_overtaken_and_the_first_answer_wins() -> None:
    story = Story()
    story.join(1, 2)
    story.tell(submitted(7))
    for task_id in story.has(2):
        story.tell(TaskFinished(2, task_id, 0.01))
    (slow,) = story.has(1)
    deadline_s = story.scheduler.next_deadline_s()
    assert deadline_s is not None
    story.tell(DeadlinePassed(), after_s=deadline_s - story.now_s)
    assert story.has(2) == (slow,)
    commands = story.tell(TaskFinished(2, slow, 0.01))
    assert CancelTask(1, slow) in commands
    assert any(isinstance(c, CompleteWork) for c in commands)


def test_a_late_device_gets_nothing_until_it_answers() -> None:
    story = Story()
    story.join(1, 2)
    story.tell(submitted(7))
    for task_id in story.has(2):
        story.tell(TaskFinished(2, task_id, 0.01))
    (slow,) = story.has(1)
    story.tell(DeadlinePassed(), after_s=1e4)
    story.tell(TaskFinished(2, slow, 0.01))
    before = len(story.of(SendTask))
    story.tell(submitted(8))
    assert {c.device_id for c in story.of(SendTask)[before:]} == {2}
    story.tell(TaskCancelled(1, slow))
    story.finish_all()
    before = len(story.of(SendTask))
    story.tell(submitted(9))
    assert {c.device_id for c in story.of(SendTask)[before:]} == {1, 2}


def test_a_late_strip_is_taken_over_by_whoever_comes_later() -> None:
    story = Story(SchedulerSettings(host_steps_in=False))
    story.join(1)
    story.tell(submitted(7))
    (slow,) = story.has(1)
    story.tell(DeadlinePassed(), after_s=1e4)
    story.join(2)
    assert story.has(2) == (slow,)


def test_a_late_strip_goes_to_the_host_when_whoever_took_it_over_leaves() -> None:
    story = Story()
    story.join(1)
    story.tell(submitted(7))
    (slow,) = story.has(1)
    story.join(2)
    story.tell(DeadlinePassed(), after_s=1e4)
    assert story.has(2) == (slow,)
    story.tell(DeviceLeft(2, "pulled"))
    assert [command.task.task_id for command in story.of(RunOnHost)] == [slow]


def test_a_late_strip_that_does_not_fit_elsewhere_stays_where_it_is() -> None:
    story = Story(SchedulerSettings(host_steps_in=False))
    story.join(1)
    story.tell(submitted(7))
    (slow,) = story.has(1)
    story.join(2, memory_bytes=100)
    story.tell(DeadlinePassed(), after_s=1e4)
    assert story.has(1) == (slow,)
    assert story.has(2) == ()
    story.finish_all()
    assert len(story.of(CompleteWork)) == 1


def test_when_everybody_is_late_all_wait_and_the_first_to_answer_takes_over() -> None:
    story = Story(SchedulerSettings(host_steps_in=False))
    story.join(*range(1, 41))
    story.tell(submitted(7, *gemm(640, 640, 640)))
    late = {task_id: device_id for device_id in range(1, 41) for task_id in story.has(device_id)}
    assert len(late) >= 40
    story.tell(DeadlinePassed(), after_s=1e4)
    assert {task_id for i in range(1, 41) for task_id in story.has(i)} == set(late)
    for task_id in story.has(1):
        story.tell(TaskFinished(1, task_id, 0.01))
    assert late[story.has(1)[0]] != 1
    story.finish_all()
    assert len(story.of(CompleteWork)) == 1


def test_a_late_answer_of_a_cancelled_task_is_not_accepted_twice() -> None:
    story = Story()
    story.join(1, 2)
    story.tell(submitted(7))
    for task_id in story.has(2):
        story.tell(TaskFinished(2, task_id, 0.01))
    (slow,) = story.has(1)
    story.tell(DeadlinePassed(), after_s=1e4)
    story.tell(TaskFinished(2, slow, 0.01))
    assert story.tell(TaskFinished(1, slow, 0.01)) == []
    assert sum(c.task_id == slow for c in story.of(AcceptResult)) == 1
    views = story.scheduler.snapshot().devices
    assert next(v.wasted_flops for v in views if v.device_id == 1) > 0


def test_a_result_that_nobody_asked_for_is_ignored() -> None:
    story = Story()
    story.join(1, 2)
    story.tell(submitted(7))
    (other,) = story.has(2)
    assert story.tell(TaskFinished(1, other, 0.01)) == []
    assert story.tell(TaskFinished(1, 999, 0.01)) == []
    assert story.tell(TaskFinished(55, other, 0.01)) == []


def test_a_failing_device_rests_longer_each_time_and_is_closed_in_the_end() -> None:
    story = Story(SchedulerSettings(max_failures_in_row=3))
    story.join(1, 2)
    rests = []
    for work_id in range(3):
        story.tell(submitted(work_id))
        (task_id,) = story.has(1)
        story.tell(TaskFailed(1, task_id, "no"))
        assert story.has(1) == ()
        deadline_s = story.scheduler.next_deadline_s()
        assert deadline_s is not None
        rests.append(round(deadline_s - story.now_s, 6))
        story.finish_all()
        story.tell(DeadlinePassed(), after_s=10.0)
    assert rests[0] < rests[1]
    assert [c.device_id for c in story.of(CloseDevice)] == [1]
    assert len(story.of(CompleteWork)) == 3


def test_what_every_device_fails_at_the_host_does_and_if_it_fails_too_the_work_fails() -> None:
    story = Story()
    story.join(1, 2)
    story.tell(submitted(7))
    for _ in range(4):
        for device_id in (1, 2):
            for task_id in story.has(device_id):
                story.tell(TaskFailed(device_id, task_id, "cannot"))
    (first, *_) = story.of(RunOnHost)
    commands = story.tell(HostFailed(first.task.task_id, "broken"))
    assert FailWork(7, "broken") in commands
    assert not story.scheduler.snapshot().works


def test_what_many_devices_failed_at_waits_for_another_if_the_host_may_not_step_in() -> None:
    story = Story(SchedulerSettings(host_steps_in=False, max_attempts=2))
    story.join(1, 2)
    story.tell(submitted(7))
    for device_id in (1, 2, 1, 2):
        for task_id in story.has(device_id):
            story.tell(TaskFailed(device_id, task_id, "cannot"), after_s=100.0)
    assert not story.of(RunOnHost)
    story.join(3)
    story.finish_all()
    ends = story.of(CompleteWork) + story.of(FailWork)
    assert len(ends) == 1


def test_a_single_device_that_failed_tries_again_after_its_rest_if_nobody_else_can() -> None:
    story = Story(SchedulerSettings(host_steps_in=False))
    story.join(1)
    story.tell(submitted(7))
    for task_id in story.has(1):
        story.tell(TaskFailed(1, task_id, "a hiccup"))
    assert not story.of(FailWork)
    story.tell(DeadlinePassed(), after_s=1.0)
    story.finish_all()
    assert [c.work_id for c in story.of(CompleteWork)] == [7]


def test_what_a_single_device_fails_at_again_and_again_fails_with_its_error() -> None:
    story = Story(SchedulerSettings(host_steps_in=False, max_attempts=3))
    story.join(1)
    story.tell(submitted(7))
    n_failures = 0
    while story.has(1):
        n_failures += 1
        story.tell(TaskFailed(1, story.has(1)[0], "out of order"))
        story.tell(DeadlinePassed(), after_s=10.0)
    (fail,) = story.of(FailWork)
    assert "no device that is here can do it (out of order)" in fail.error
    assert n_failures == 3


def test_what_no_device_can_do_fails_if_the_host_may_not_step_in() -> None:
    story = Story(SchedulerSettings(host_steps_in=False, max_attempts=99))
    story.join(1, memory_bytes=10)
    story.tell(submitted(7, *gemm(m=4, n=4, k=4096)))
    assert [c.work_id for c in story.of(FailWork)] == [7]


def test_a_task_refused_for_missing_blocks_is_sent_again_with_them() -> None:
    story = Story()
    story.join(1)
    story.tell(submitted(7))
    (first,) = story.of(SendTask)
    commands = story.tell(TaskRefused(1, first.task.task_id, "missing", first.handles))
    again = [c for c in commands if isinstance(c, SendTask)]
    assert [fill.n_bytes for fill in again[0].fills] == [fill.n_bytes for fill in first.fills]
    assert not set(again[0].handles) & set(first.handles)


def test_a_device_that_goes_on_refusing_is_left_out() -> None:
    story = Story()
    story.join(1, 2)
    story.tell(submitted(7))
    for _ in range(10):
        for task_id in story.has(1):
            story.tell(TaskRefused(1, task_id, "memory"))
    assert story.has(1) == ()
    story.finish_all()
    assert len(story.of(CompleteWork)) == 1


@pytest.mark.parametrize("reason", ["memory", "missing", "paused"])
def test_a_device_that_refuses_everything_rests_and_is_closed_in_the_end(reason: str) -> None:
    story = Story(SchedulerSettings(max_failures_in_row=3))
    story.join(1)
    for work_id in range(3):
        story.tell(submitted(work_id))
        while story.has(1):
            sent = [c for c in story.of(SendTask) if c.task.task_id == story.has(1)[0]][-1]
            handles = sent.handles if reason == "missing" else ()
            story.tell(TaskRefused(1, sent.task.task_id, reason, handles))
        assert story.scheduler.snapshot().devices[0].state == "resting"
        story.finish_all()
        story.tell(DeadlinePassed(), after_s=10.0)
    (close,) = story.of(CloseDevice)
    assert close.reason.endswith(f"refused 4 times: {reason}")
    assert [command.work_id for command in story.of(RunOnHost)] == [0, 1, 2]


def test_a_device_without_memory_for_anything_is_closed_in_the_end_too() -> None:
    story = Story(SchedulerSettings(rest_s=1e-4))
    story.join(1, memory_bytes=1 << 20)
    n_works = 0
    while not story.of(CloseDevice):
        story.tell(submitted(n_works))
        while story.has(1) and not story.of(CloseDevice):
            story.tell(TaskRefused(1, story.has(1)[0], "memory"))
        n_works += 1
        assert n_works <= SchedulerSettings().max_failures_in_row, "it was spared for good"
        story.tell(DeadlinePassed(), after_s=10.0)


def test_a_task_that_a_device_dropped_unasked_is_done_elsewhere() -> None:
    story = Story(SchedulerSettings(host_steps_in=False))
    story.join(1, 2)
    story.tell(submitted(7))
    dropped, *_ = story.has(1)
    story.tell(TaskCancelled(1, dropped))
    assert dropped not in story.has(1)
    story.finish_all()
    assert [c.work_id for c in story.of(CompleteWork)] == [7]


def test_a_paused_device_gives_back_its_work_and_returns_when_resumed() -> None:
    story = Story()
    story.join(1, 2)
    story.tell(submitted(7))
    (held,) = story.has(1)
    story.tell(DevicePaused(1, "on battery"))
    assert story.has(1) == ()
    story.tell(TaskRefused(1, held, "paused"))
    story.finish_all()
    assert len(story.of(CompleteWork)) == 1
    assert all(c.device_id == 2 for c in story.of(AcceptResult))
    story.tell(DeviceResumed(1))
    story.tell(submitted(8))
    assert story.has(1)


def test_an_operand_that_a_device_still_holds_is_not_sent_again() -> None:
    story = Story()
    story.join(1)
    x, w, y = matrix(32, 16), matrix(16, 24), matrix(32, 24)
    forward = Gemm(name="forward", a=x, b=w, out=y).forms()
    story.tell(WorkSubmitted(1, forward))
    story.finish_all()
    assert sum(f.n_bytes for f in story.of(SendTask)[0].fills) == 4 * (32 * 16 + 16 * 24)
    dy, dx = matrix(32, 24), matrix(32, 16)
    backward = Gemm(name="input grad", a=dy, b=w, out=dx, b_transposed=True).forms()
    story.tell(WorkSubmitted(2, backward))
    assert sum(f.n_bytes for f in story.of(SendTask)[1].fills) == 4 * 32 * 24


def test_a_released_matrix_is_dropped_once_no_task_uses_it() -> None:
    story = Story()
    story.join(1)
    forms = gemm()
    story.tell(WorkSubmitted(1, forms))
    a = forms[0].inputs[0].matrix
    assert story.tell(MatrixReleased(a.tensor_id)) == []
    (task,) = story.has(1)
    handle = story.of(SendTask)[0].handles[0]
    assert DropBlocks(1, (handle,)) in story.tell(TaskFinished(1, task, 0.01))


def test_blocks_make_room_for_others_within_the_memory_lent() -> None:
    story = Story()
    story.join(1, memory_bytes=4 * 64 * 64 * 4)
    for work_id in range(5):
        story.tell(submitted(work_id))
        story.finish_all()
    assert story.of(DropBlocks)
    assert len(story.of(CompleteWork)) == 5


def test_urgent_work_overtakes_what_is_still_queued() -> None:
    story = Story(SchedulerSettings(strip_s=0.001, window_s=0.0))
    story.join(1)
    a, b, out = matrix(512, 64), matrix(64, 64), matrix(512, 64)
    later = Gemm(name="weight grad", a=a, b=b, out=out, priority=1).forms()
    story.tell(WorkSubmitted(1, later))
    story.tell(submitted(2))
    story.finish_all()
    assert [c.work_id for c in story.of(SendTask)] == [1, 1, 2, 1]


def test_work_that_comes_after_other_work_waits_for_all_of_it() -> None:
    story = Story()
    story.join(1)
    story.tell(submitted(1))
    story.tell(WorkSubmitted(2, gemm(), after=(1,)))
    assert {c.work_id for c in story.of(SendTask)} == {1}
    story.finish_all()
    assert [c.work_id for c in story.of(CompleteWork)] == [1, 2]


# Kept results: chains of work on one device -------------------------------------------------------


def chain() -> tuple[Work, Work, Matrix]:
    """Two works over the same rows; what the first makes stays on the devices."""
    x, hidden, y = matrix(64, 8), matrix(64, 8), matrix(64, 8)

    def work(name: str, source: Matrix, target: Matrix, fate: Fate) -> Work:
        return Work(
            name=name,
            n_rows=64,
            n_cols=1,
            inputs=(Operand(matrix=source, rows=Along.ROWS, cols=Along.ALL),),
            results=(
                Result(matrix=target, rows=Along.ROWS, cols=Along.COLS, col_scale=8, fate=fate),
            ),
            program=Program(n_inputs=1, ops=(Op("relu", (Ref(0),)),), outputs=(1,)),
            flops_per_cell=1e5,
        )

    first = work("first", x, hidden, Fate.KEPT)
    return first, work("second", hidden, y, Fate.RETURNED), hidden


def test_pinned_work_is_done_where_its_inputs_were_kept_and_sends_nothing() -> None:
    story = Story()
    story.join(1, 2)
    first, second, _ = chain()
    story.tell(WorkSubmitted(1, (first,)))
    story.tell(WorkSubmitted(2, (second,), after=(1,), pinned=True))
    story.finish_all()
    where = {c.task.outputs[0].block.region: c.device_id for c in story.of(SendTask)}
    for command in story.of(SendTask):
        if command.work_id == 2:
            assert command.fills == ()
            assert command.device_id == where[command.task.inputs[0].view]
    assert [c.work_id for c in story.of(CompleteWork)] == [1, 2]


def test_a_kept_result_that_was_lost_is_made_again_elsewhere() -> None:
    story = Story()
    story.join(1, 2)
    first, second, hidden = chain()
    story.tell(WorkSubmitted(1, (first,)))
    story.finish_all()
    story.tell(DeviceLeft(2, "pulled"))
    story.tell(WorkSubmitted(2, (second,), after=(1,), pinned=True))
    story.finish_all()
    assert [c.work_id for c in story.of(CompleteWork)] == [1, 2]
    story.tell(MatrixReleased(hidden.tensor_id))
    assert not story.scheduler.snapshot().works


def test_a_chain_survives_losing_a_device_in_each_phase() -> None:
    for n_done in range(6):
        story = Story()
        story.join(1, 2, 3)
        first, second, hidden = chain()
        story.tell(WorkSubmitted(1, (first,)))
        story.tell(WorkSubmitted(2, (second,), after=(1,), pinned=True))
        for _ in range(n_done):
            sent = [(v.device_id, t) for v in story.scheduler.snapshot().devices for t in v.sent]
            if sent:
                story.tell(TaskFinished(*sent[-1], 0.01))
        story.tell(DeviceLeft(3, "pulled"))
        story.finish_all()
        assert {c.work_id for c in story.of(CompleteWork)} == {1, 2}
        story.tell(MatrixReleased(hidden.tensor_id))
        assert not story.scheduler.snapshot().works


@pytest.mark.parametrize("is_done", [True, False], ids=["kept", "in flight"])
def test_a_device_that_lost_what_it_makes_or_keeps_is_closed(is_done: bool) -> None:
    story = Story()
    story.join(1, 2)
    first, second, _ = chain()
    story.tell(WorkSubmitted(1, (first,)))
    story.tell(WorkSubmitted(2, (second,), after=(1,), pinned=True))
    story.tell(submitted(3))
    made = story.of(SendTask)[0]
    device_id, task_id = made.device_id, made.task.task_id
    if is_done:
        story.tell(TaskFinished(device_id, task_id, 0.01))
    other = next(each for each in story.has(device_id) if each != task_id)
    story.tell(TaskRefused(device_id, other, "missing", made.output_handles))
    assert [command.device_id for command in story.of(CloseDevice)] == [device_id]
    story.tell(DeviceLeft(device_id, "closed"))
    story.finish_all()
    assert {c.work_id for c in story.of(CompleteWork)} == {1, 2, 3}


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(TypeError, match="unknown event"):
        Scheduler().handle("hello", 0.0)  # type: ignore[arg-type]


def test_a_device_id_is_never_used_twice() -> None:
    story = Story()
    story.join(1)
    with pytest.raises(ValueError, match="never used twice"):
        story.join(1)


def test_work_in_several_pieces_that_nobody_left_can_do_fails_once() -> None:
    story = Story(SchedulerSettings(host_steps_in=False))
    story.join(1, memory_bytes=20_000)  # all of it is 3 * 64 * 64 * 4 = 49,152 bytes
    story.join(2, memory_bytes=100)  # too little for a single cell and its operands
    story.tell(submitted(1))
    strips = sorted(story.scheduler.snapshot().strips, key=lambda strip: strip.tile)
    assert len(strips) >= 4
    while len(story.of(AcceptResult)) < 2:
        story.tell(TaskFinished(1, story.has(1)[0], 0.01))
    story.tell(DeviceLeft(1, "gone"))
    assert [command.work_id for command in story.of(FailWork)] == [1]
    assert story.scheduler.snapshot().strips == ()


def test_a_late_device_that_refuses_leaves_the_task_to_the_one_that_has_it_too() -> None:
    story = Story(SchedulerSettings(host_steps_in=False))
    story.join(1)
    story.tell(submitted(1))
    (task_id,) = story.has(1)
    story.tell(DeadlinePassed(), after_s=100.0)
    story.join(2)
    story.tell(submitted(2))
    assert len(story.has(2)) == 2  # what 1 is late with, and the new work
    story.tell(DeadlinePassed(), after_s=100.0)
    story.tell(TaskRefused(2, task_id, "missing", missing=(1,)))
    assert task_id in story.has(1)
    story.finish_all()
    assert len(story.of(CompleteWork)) == 2
