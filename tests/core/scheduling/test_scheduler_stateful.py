"""Random stories of joining, leaving, silence, failure and late answers: all work ends, once.

Modelled devices check what they are sent: rows come in order, and a task's inputs are there.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cleave.core.device import DeviceProfile
from cleave.core.matrix import DType, Matrix, Region
from cleave.core.operations import Gemm
from cleave.core.program import Op, Program, Ref
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
    DropBlocks,
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
from cleave.core.work import Along, Fate, Operand, Result, Work


class Store:
    """What a modelled device holds, and the tasks it was sent."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}  # of each block, from the first on
        self.tasks: dict[int, SendTask] = {}

    def take(self, command: SendTask) -> None:
        for fill in command.fills:
            assert self.rows.get(fill.handle, 0) == fill.row0, "rows come in order"
            assert fill.row1 <= fill.block.region.n_rows
            self.rows[fill.handle] = fill.row1
        for handle, source in zip(command.handles, command.task.inputs, strict=True):
            needed = source.view.within(source.block.region).row1
            assert self.rows.get(handle, 0) >= needed, "all that a task reads is there"
        self.tasks[command.task.task_id] = command

    def end(self, task_id: int, *, is_done: bool) -> None:
        command = self.tasks.pop(task_id)
        for handle, output in zip(command.output_handles, command.task.outputs, strict=True):
            if is_done and handle:
                self.rows[handle] = output.block.region.n_rows

    def made(self) -> set[int]:
        """Blocks that tasks in flight will make."""
        return {handle for sent in self.tasks.values() for handle in sent.output_handles if handle}


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
        self.stores: dict[int, Store] = {}
        self.forms: dict[int, tuple[Work, ...]] = {}
        self.to_release: list[tuple[set[int], list[Matrix]]] = []  # once these works have ended
        self.on_host: list[int] = []
        self.ended: list[int] = []
        self.accepted: dict[int, list[Region]] = {}
        self.accepted_tasks: list[int] = []

    def tell(self, event: Event) -> None:
        self.now_s += 0.001
        pending: list[Event] = [event]
        while pending:
            for command in self.scheduler.handle(pending.pop(0), self.now_s):
                pending += self.obey(command)

    def obey(self, command: Command) -> list[Event]:
        if isinstance(command, RunOnHost):
            self.on_host.append(command.task.task_id)
        elif isinstance(command, CompleteWork):
            self.ended.append(command.work_id)
            forms = self.forms[command.work_id]
            n_cells = sum(placement.tile.area for placement in command.layout)
            if command.form < len(forms):  # else the planner cut one in slabs
                n_cells = forms[command.form].whole.area
            accepted = self.accepted.get(command.work_id, [])
            assert sum(tile.area for tile in accepted) == n_cells, "every cell, once"
        elif isinstance(command, FailWork):
            self.ended.append(command.work_id)
        elif isinstance(command, AcceptResult):
            self.accepted_tasks.append(command.task_id)
            before = self.accepted.setdefault(command.work_id, [])
            assert not any(overlap(command.tile, tile) for tile in before), command
            before.append(command.tile)
        elif isinstance(command, CloseDevice):
            self.stores.pop(command.device_id, None)
            return [DeviceLeft(command.device_id, "closed")]
        elif isinstance(command, SendTask):
            self.stores[command.device_id].take(command)
        elif isinstance(command, DropBlocks):
            for handle in command.handles:
                self.stores[command.device_id].rows.pop(handle, None)
        return []

    def sent(self) -> list[tuple[int, int]]:
        return [(v.device_id, t) for v in self.scheduler.snapshot().devices for t in v.sent]

    def device_ids(self) -> list[int]:
        return [view.device_id for view in self.scheduler.snapshot().devices]

    def gone(self, device_id: int, reason: str) -> None:
        del self.stores[device_id]
        self.tell(DeviceLeft(device_id, reason))

    def fresh(self) -> int:
        self.next_id += 1
        return self.next_id

    def matrix(self, n_rows: int, n_cols: int) -> Matrix:
        return Matrix(self.fresh(), n_rows, n_cols, DType.F32)

    def submit_work(self, *forms: Work, after: tuple[int, ...] = ()) -> int:
        work_id = self.fresh()
        self.forms[work_id] = forms
        self.tell(WorkSubmitted(work_id, forms, after=after, pinned=bool(after)))
        return work_id

    @rule(speed=st.sampled_from([1e7, 1e8, 1e9]), memory=st.sampled_from([2_000, 20_000, 1 << 20]))
    def join(self, speed: float, memory: int) -> None:
        profile = DeviceProfile(
            device_id=self.fresh(), flops_per_s={DType.F32: speed}, memory_bytes=memory
        )
        self.stores[profile.device_id] = Store()
        self.tell(DeviceJoined(profile))

    @rule(
        m=st.integers(0, 40),
        n=st.integers(1, 40),
        k=st.integers(1, 40),
        late=st.booleans(),
        n_slabs=st.sampled_from([1, 1, 3]),
    )
    def submit(self, m: int, n: int, k: int, late: bool, n_slabs: int) -> None:
        a, b, out = self.matrix(m, k), self.matrix(k, n), self.matrix(m, n)
        forms = Gemm(name="gemm", a=a, b=b, out=out, priority=int(late)).forms()
        if n_slabs > 1:
            forms = (forms[0].in_slabs(n_slabs),)
        work_id = self.submit_work(*forms)
        self.to_release.append(({work_id}, [a, b]))

    @rule(n_rows=st.integers(1, 40), n_works=st.integers(2, 3))
    def submit_chain(self, n_rows: int, n_works: int) -> None:
        """Works that each read what the one before keeps on devices."""
        sources = [self.matrix(n_rows, 8) for _ in range(n_works)]
        works: list[int] = []
        for i, source in enumerate(sources):
            target = self.matrix(n_rows, 8) if i == n_works - 1 else sources[i + 1]
            fate = Fate.RETURNED if i == n_works - 1 else Fate.KEPT
            works.append(self.submit_work(row_work(source, target, fate), after=tuple(works[-1:])))
        self.to_release.append((set(works), sources[::-1]))

    @precondition(lambda self: self.device_ids())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.gone(data.draw(st.sampled_from(self.device_ids())), "left")

    @precondition(lambda self: self.device_ids())
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        device_id = data.draw(st.sampled_from(self.device_ids()))
        self.stores[device_id].tasks.clear()
        self.tell(DevicePaused(device_id, "on battery"))

    @precondition(lambda self: self.device_ids())
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self.tell(DeviceResumed(data.draw(st.sampled_from(self.device_ids()))))

    @precondition(lambda self: self.sent())
    @rule(data=st.data(), how=st.sampled_from(["done", "done", "failed", "full", "missing", "cut"]))
    def answer(self, data: st.DataObject, how: str) -> None:
        device_id, task_id = data.draw(st.sampled_from(self.sent()))
        store = self.stores[device_id]
        is_cancelled = task_id not in {s.task_id for s in self.scheduler.snapshot().strips}
        if how == "cut" and not is_cancelled:
            return  # devices drop only what they were told to drop
        missing: tuple[int, ...] = ()
        if how == "missing":
            missing = tuple(data.draw(st.sets(st.sampled_from(store.tasks[task_id].handles))))
            for handle in missing:
                store.rows.pop(handle, None)
        events: dict[str, Event] = {
            "done": TaskFinished(device_id, task_id, 0.01),
            "failed": TaskFailed(device_id, task_id, "no"),
            "full": TaskRefused(device_id, task_id, "memory"),
            "missing": TaskRefused(device_id, task_id, "missing", missing),
            "cut": TaskCancelled(device_id, task_id),
        }
        store.end(task_id, is_done=how == "done")
        self.tell(events[how])

    @precondition(lambda self: any(store.made() for store in self.stores.values()))
    @rule(data=st.data())
    def disown_what_a_task_makes(self, data: st.DataObject) -> None:
        makers = [device_id for device_id, store in self.stores.items() if store.made()]
        device_id = data.draw(st.sampled_from(makers))
        store = self.stores[device_id]
        task_id = data.draw(st.sampled_from(sorted(store.tasks)))
        store.end(task_id, is_done=False)
        if left := store.made():
            self.tell(TaskRefused(device_id, task_id, "missing", (min(left),)))
            assert device_id not in self.stores
        else:
            self.tell(TaskRefused(device_id, task_id, "missing"))

    @rule(device_id=st.integers(0, 50), task_id=st.integers(0, 500))
    def answer_nobody_asked_for(self, device_id: int, task_id: int) -> None:
        if (device_id, task_id) not in self.sent():
            before = list(self.accepted_tasks)
            self.tell(TaskFinished(device_id, task_id, 0.01))
            assert self.accepted_tasks == before

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

    @rule()
    def release(self) -> None:
        """The submitter releases what it has no work on any more, what was kept first."""
        for works, matrices in list(self.to_release):
            if works <= set(self.ended):
                self.to_release.remove((works, matrices))
                for matrix in matrices:
                    self.tell(MatrixReleased(matrix.tensor_id))

    @invariant()
    def state_is_sound(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check()
            assert len(set(self.ended)) == len(self.ended)
            assert len(set(self.accepted_tasks)) == len(self.accepted_tasks)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for device_id in self.device_ids():
            self.gone(device_id, "end")
        self.join(1e9, 1 << 30)
        for _ in range(5000):
            if self.on_host:
                self.host_answers()
            elif self.sent():
                device_id, task_id = self.sent()[0]
                self.stores[device_id].end(task_id, is_done=True)
                self.tell(TaskFinished(device_id, task_id, 0.01))
            else:
                break
        assert set(self.ended) == set(self.forms), self.scheduler.snapshot()
        self.release()
        assert not self.scheduler.snapshot().strips
        assert not self.scheduler.snapshot().works


def overlap(one: Region, other: Region) -> bool:
    rows = min(one.row1, other.row1) - max(one.row0, other.row0)
    cols = min(one.col1, other.col1) - max(one.col0, other.col0)
    return rows > 0 and cols > 0


def row_work(source: Matrix, target: Matrix, fate: Fate) -> Work:
    """A function of each row by itself."""
    return Work(
        name="rows",
        n_rows=source.n_rows,
        n_cols=1,
        inputs=(Operand(matrix=source, rows=Along.ROWS, cols=Along.ALL),),
        results=(Result(matrix=target, rows=Along.ROWS, cols=Along.COLS, col_scale=8, fate=fate),),
        program=Program(n_inputs=1, ops=(Op("relu", (Ref(0),)),), outputs=(1,)),
        flops_per_cell=1e5,
    )


Churn.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestChurn = Churn.TestCase
