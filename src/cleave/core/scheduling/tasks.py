"""A strip as a task: bound program, inputs, outputs."""

from __future__ import annotations

from cleave.core.matrix import Region
from cleave.core.scheduling.state import Strip
from cleave.core.work import Task, TaskInput, TaskOutput, Work


def bound_task(
    strip: Strip, inputs: tuple[TaskInput, ...], outputs: tuple[TaskOutput, ...]
) -> Task:
    """What is sent of a strip, when it is known in which blocks its inputs lie."""
    work = strip.state.work
    return Task(
        task_id=strip.task_id,
        program=work.program.bind(strip.tile),
        inputs=inputs,
        outputs=outputs,
        flops=strip.flops,
        workspace_bytes=strip.workspace_bytes,
        priority=work.priority,
    )


def outputs_of(work: Work, tile: Region) -> tuple[TaskOutput, ...]:
    """What a task on a tile makes."""
    return tuple(
        [
            TaskOutput(result.block(tile), result.fate, work.is_partial(result))
            for result in work.results
        ]
    )
