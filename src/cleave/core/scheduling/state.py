"""What the scheduler remembers of each device, work and strip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from cleave.core.layout import Layout
from cleave.core.matrix import BlockRef, DType, Region
from cleave.core.planning.cost import CostForm
from cleave.core.scheduling.estimate import Estimator, Prediction
from cleave.core.scheduling.events import WorkSubmitted
from cleave.core.scheduling.residency import Ledger, Need
from cleave.core.work import Along, Fate, Result, TaskOutput, Work

Key = tuple[int, int, int]
"""Order in which strips are taken: priority, number of the work, number of the task."""


class Strip(msgspec.Struct, eq=False, gc=False):
    """The unit that is handed out: a tile, or part of one, of one work; open until accepted.

    There may be hundreds of thousands: the garbage collector does not look at them. Their cycle
    with the work is broken when they are closed.

    Attributes:
        task_id: Its number; never used twice.
        state: The work it is part of.
        tile: Which cells.
        needs: What it reads of each input, and what the tile it was cut from reads: the blocks of
            all strips of a tile are held together.
        key: Order in which strips are taken.
        flops: Operations of it.
        up_bytes: Bytes of its result.
        workspace_bytes: Memory that it needs beyond inputs and outputs.
        down_bytes: Bytes that must travel to the device in whose queue it is, about.
        queued_on: The device in whose queue it is, or None.
        queued_s: Seconds that it should keep that device busy.
        sent_to: Devices that have it now; more than one once it is late.
        on_host: Whether the host has it.
        failed_on: Devices that could not do it.
        refusals: How often it was refused.
        bound_to: The only device that may do it (its kept inputs lie there), or None.
        is_again: Whether its cells were accepted before, and what was kept of them is lost.
    """

    task_id: int
    state: WorkState
    tile: Region
    needs: tuple[Need, ...]
    key: Key
    flops: float
    up_bytes: int
    workspace_bytes: int
    down_bytes: int = 0
    queued_on: int | None = None
    queued_s: float = 0.0
    sent_to: tuple[int, ...] = ()
    on_host: bool = False
    failed_on: frozenset[int] = frozenset()
    refusals: int = 0
    bound_to: int | None = None
    is_again: bool = False

    @property
    def is_placed(self) -> bool:
        """Whether somebody has it."""
        return bool(self.sent_to) or self.queued_on is not None or self.on_host


class WorkState:
    """A submitted work until it is complete, and then until its kept results are released.

    Attributes:
        submitted: What was asked for.
        number: Its place in the order of submission.
        form: Index of the form taken.
        layout: The plan.
        open: Its strips by task id.
        done: Accepted tiles and who did them.
        n_missing: Cells that are not accepted yet.
        followers: Numbers of the works that come after it.
        is_fixed: Whether its program is the same for all tiles.
        is_planned: Whether it has been cut.
        is_complete: Whether completion has been told.
        is_final: Whether it cannot be done again: an input was released.
        lost: Accepted tiles of which the kept part was lost.
    """

    def __init__(self, submitted: WorkSubmitted, number: int) -> None:
        """Nothing of it is done; its first form is taken until there is a plan."""
        self.submitted = submitted
        self.number = number
        self.layout: Layout = ()
        self.open: dict[int, Strip] = {}
        self.done: dict[Region, int] = {}
        self.followers: list[int] = []
        self.is_planned = False
        self.is_complete = False
        self.is_final = False
        self.lost: list[Region] = []
        self.take(0)

    def take(self, form: int, layout: Layout = (), work: Work | None = None) -> None:
        """Choose a form, or one in slabs; before anything of the work is done."""
        self.form, self.layout = form, layout
        self.work: Work = work or self.submitted.forms[form]
        self.cost = CostForm.of(self.work)
        self.ops = self.work.ops
        self.dtype: DType = self.work.dtype
        self.n_missing = self.work.whole.area
        self._input_matrices = tuple(operand.matrix for operand in self.work.inputs)
        self._results = tuple(
            (each, self.work.is_partial(each), _is_tile(each)) for each in self.work.results
        )
        self.is_fixed = self.work.program.bind(self.work.whole) is self.work.program
        self.kept: tuple[int, ...] = tuple(
            result.matrix.tensor_id
            for result in self.work.results
            if result.fate is not Fate.RETURNED
        )

    @property
    def work_id(self) -> int:
        """Its number for the submitter."""
        return self.submitted.work_id

    def needs(self, tile: Region, home: Sequence[Need] = ()) -> tuple[Need, ...]:
        """What a tile reads of each input; as part of a larger tile, if that one's are given."""
        if not home:
            regions = [operand.region(tile) for operand in self.work.inputs]
            return tuple(map(Need, self._input_matrices, regions, regions))
        pairs = zip(self.work.inputs, home, strict=True)
        return tuple([Need(one.matrix, one.region(tile), whole.view) for one, whole in pairs])

    def outputs(self, tile: Region) -> tuple[TaskOutput, ...]:
        """What a task on a tile makes."""
        return tuple(
            [
                TaskOutput(
                    BlockRef(result.matrix, tile if is_tile else result.region(tile)),
                    result.fate,
                    is_partial,
                )
                for result, is_partial, is_tile in self._results
            ]
        )

    def accept(self, tile: Region, device_id: int) -> None:
        """A tile is done."""
        self.done[tile] = device_id
        self.n_missing -= tile.area

    def lose(self, tile: Region) -> None:
        """What was kept of a tile is gone."""
        del self.done[tile]
        self.n_missing += tile.area
        self.lost.append(tile)

    def has(self, tile: Region) -> bool:
        """Whether all of a tile was done, perhaps as part of a larger one."""
        return tile in self.done or any(region.contains(tile) for region in self.done)


class Sent(msgspec.Struct, eq=False, gc=False):
    """A task that a device has now; it ends by exactly one answer.

    Attributes:
        strip: What was sent; its work may be complete before the answer comes.
        prediction: What it was expected to take.
        deadline_s: When it is late.
        is_late: Whether that time has passed.
        is_cancelled: Whether the result is no longer wanted.
    """

    strip: Strip
    prediction: Prediction
    deadline_s: float
    is_late: bool = False
    is_cancelled: bool = False


@dataclass(slots=True)
class Tally:
    """What a device has done so far."""

    tasks: int = 0
    flops: float = 0.0
    wasted_flops: float = 0.0
    flops_done: float = 0.0
    compute_s: float = 0.0
    failures: int = 0


@dataclass(slots=True, eq=False)
class DeviceState:
    """One connected device.

    Attributes:
        device_id: Its number.
        estimator: Its rates as they are learnt.
        ledger: What it holds.
        queue: Strips it will be sent, first first.
        queued_s: Seconds that those should keep it busy.
        sent: Tasks it has.
        n_late: How many of those are late.
        busy_until_s: When it should be done with those.
        alarm_s: When the book looks whether it is late; infinity if it has nothing.
        behind_s: It stands among those to steal from with this time; infinity if it does not.
        paused: Why its owner comes first at the moment, or None.
        resting_until_s: After failures it is given nothing until then.
        failures_in_row: Failures since the last success.
        failure: What the last of them was.
        is_full: It refused a task for lack of memory; no more until one ends.
        is_closing: It is about to be closed; it is given nothing more.
        tally: What it has done.
    """

    device_id: int
    estimator: Estimator
    ledger: Ledger
    queue: list[Strip] = field(default_factory=list)
    queued_s: float = 0.0
    sent: dict[int, Sent] = field(default_factory=dict)
    n_late: int = 0
    busy_until_s: float = 0.0
    alarm_s: float = math.inf
    behind_s: float = math.inf
    paused: str | None = None
    resting_until_s: float = 0.0
    failures_in_row: int = 0
    failure: str = ""
    is_full: bool = False
    is_closing: bool = False
    tally: Tally = field(default_factory=Tally)

    def is_available(self, now_s: float) -> bool:
        """Whether it may be given tasks now."""
        is_free = not self.n_late and self.paused is None and not self.is_closing
        return is_free and self.resting_until_s <= now_s

    def can_run(self, state: WorkState) -> bool:
        """Whether it has the ops and the element type."""
        return self.estimator.planned.can_run(state.ops, state.dtype)

    def free_s(self, now_s: float) -> float:
        """When it should have done all that it has been given."""
        return (max(now_s, self.busy_until_s) if self.sent else now_s) + self.queued_s

    def missing_bytes(self, needs: Sequence[Need]) -> int:
        """Bytes that would travel if it were to read these now."""
        missing = self.ledger.missing_bytes
        return sum([missing(need.matrix, need.view) for need in needs])

    def times_s(self, strip: Strip, down_bytes: int) -> tuple[float, float]:
        """Seconds that a strip keeps it busy, and seconds from end to end."""
        return self.estimator.predict(
            strip.state.dtype, down_bytes=down_bytes, up_bytes=strip.up_bytes, flops=strip.flops
        )


def _is_tile(result: Result) -> bool:
    """Whether the region that a tile writes has the tile's own coordinates."""
    if result.slabs is not None and result.slabs.count > 1:
        return False
    axes = (result.rows, result.cols, result.row_scale, result.col_scale)
    return axes == (Along.ROWS, Along.COLS, 1, 1)
