"""Random stories of joining, leaving, silence, failure and late answers: all work ends, once."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cleave.core.device import DeviceProfile
from cleave.core.matrix import DType, Matrix
from cleave.core.operations import Gemm
from cleave.core.scheduling.events import (
    AcceptResult,
    CloseDevice,
    Command,
    CompleteWork,
    DeadlinePassed,
    DeviceJoined,
    DeviceLeft,
    DevicePaused,
    DeviceResumed,
    Event,
    FailWork,
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
from cleave.core.scheduling.settings import SchedulerSettings


class Churn(RuleBasedStateMachine):
    """Devices that do all that devices do, and a host that steps in."""

    @initialize(host_steps_in=st.booleans())
    def begin(self, host_steps_in: bool) -> None:
        self.scheduler = Scheduler(
            SchedulerSettings(
                host_steps_in=host_steps_in, strip_s=0.002, window_s=0.01, max_failures_in_row=4
            )
        )
        self.now_s = 0.0
        self.next_id = 1
        self.matrices: list[Matrix] = []
        self.on_host: list[int] = []
        self.submitted: set[int] = set()
        self.ended: list[int] = []
        self.accepted: list[int] = []

    def tell(self, event: Event) -> None:
        self.now_s += 0.001
        pending: list[Event] = [event]
        while pending:
            for command in self.scheduler.handle(pending.pop(0), self.now_s):
                pending += self.obey(command)

    def obey(self, command: Command) -> list[Event]:
        if isinstance(command, RunOnHost):
            self.on_host.append(command.task.task_id)
        elif isinstance(command, CompleteWork | FailWork):
            self.ended.append(command.work_id)
        elif isinstance(command, AcceptResult):
            self.accepted.append(command.task_id)
        elif isinstance(command, CloseDevice):
            return [DeviceLeft(command.device_id, "closed")]
        elif isinstance(command, SendTask):
            for fill in command.fills:
                assert 0 <= fill.row0 < fill.row1 <= fill.block.region.n_rows
        return []

    def sent(self) -> list[tuple[int, int]]:
        return [(v.device_id, t) for v in self.scheduler.snapshot().devices for t in v.sent]

    def device_ids(self) -> list[int]:
        return [view.device_id for view in self.scheduler.snapshot().devices]

    def fresh(self) -> int:
        self.next_id += 1
        return self.next_id

    @rule(speed=st.sampled_from([1e7, 1e8, 1e9]), memory=st.sampled_from([2_000, 20_000, 1 << 20]))
    def join(self, speed: float, memory: int) -> None:
        profile = DeviceProfile(
            device_id=self.fresh(), flops_per_s={DType.F32: speed}, memory_bytes=memory
        )
        self.tell(DeviceJoined(profile))

    @rule(m=st.integers(0, 40), n=st.integers(1, 40), k=st.integers(1, 40), late=st.booleans())
    def submit(self, m: int, n: int, k: int, late: bool) -> None:
        a, b, out = (
            Matrix(self.fresh(), rows, cols, DType.F32) for rows, cols in ((m, k), (k, n), (m, n))
        )
        self.matrices += [a, b]
        work_id = self.fresh()
        self.submitted.add(work_id)
        forms = Gemm(name="gemm", a=a, b=b, out=out, priority=int(late)).forms()
        self.tell(WorkSubmitted(work_id, forms))

    @precondition(lambda self: self.device_ids())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.tell(DeviceLeft(data.draw(st.sampled_from(self.device_ids())), "left"))

    @precondition(lambda self: self.device_ids())
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        self.tell(DevicePaused(data.draw(st.sampled_from(self.device_ids())), "on battery"))

    @precondition(lambda self: self.device_ids())
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self.tell(DeviceResumed(data.draw(st.sampled_from(self.device_ids()))))

    @precondition(lambda self: self.sent())
    @rule(data=st.data(), how=st.sampled_from(["done", "done", "failed", "full", "missing", "cut"]))
    def answer(self, data: st.DataObject, how: str) -> None:
        device_id, task_id = data.draw(st.sampled_from(self.sent()))
        events: dict[str, Event] = {
            "done": TaskFinished(device_id, task_id, 0.01),
            "failed": TaskFailed(device_id, task_id, "no"),
            "full": TaskRefused(device_id, task_id, "memory"),
            "missing": TaskRefused(device_id, task_id, "missing", (1, 2, 3)),
            "cut": TaskCancelled(device_id, task_id),
        }
        is_cancelled = task_id not in {s.task_id for s in self.scheduler.snapshot().strips}
        if how != "cut" or is_cancelled:  # devices drop only what they were told to drop
            self.tell(events[how])

    @rule(device_id=st.integers(0, 50), task_id=st.integers(0, 500))
    def answer_nobody_asked_for(self, device_id: int, task_id: int) -> None:
        if (device_id, task_id) not in self.sent():
            before = list(self.accepted)
            self.tell(TaskFinished(device_id, task_id, 0.01))
            assert self.accepted == before

    @rule(after_s=st.sampled_from([0.01, 1.0, 100.0]))
    def wait(self, after_s: float) -> None:
        deadline_s = self.scheduler.next_deadline_s()
        self.now_s += after_s
        if deadline_s is not None and deadline_s <= self.now_s:
            self.tell(DeadlinePassed())

    @precondition(lambda self: self.on_host)
    @rule()
    def host_answers(self) -> None:
        self.tell(HostFinished(self.on_host.pop(0)))

    @precondition(lambda self: self.matrices)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        idle = not self.scheduler.snapshot().works
        if idle:  # the submitter releases what it has no work on any more
            matrix = self.matrices.pop(data.draw(st.integers(0, len(self.matrices) - 1)))
            self.tell(MatrixReleased(matrix.tensor_id))

    @invariant()
    def state_is_sound(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check()
            assert len(set(self.ended)) == len(self.ended)
            assert len(set(self.accepted)) == len(self.accepted)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for device_id in self.device_ids():
            self.tell(DeviceLeft(device_id, "end"))
        self.tell(
            DeviceJoined(
                DeviceProfile(
                    device_id=self.fresh(), flops_per_s={DType.F32: 1e9}, memory_bytes=1 << 30
                )
            )
        )
        for _ in range(5000):
            if self.on_host:
                self.host_answers()
            elif self.sent():
                device_id, task_id = self.sent()[0]
                self.tell(TaskFinished(device_id, task_id, 0.01))
            else:
                break
        assert set(self.ended) == self.submitted, self.scheduler.snapshot()
        assert not self.scheduler.snapshot().strips


Churn.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestChurn = Churn.TestCase
