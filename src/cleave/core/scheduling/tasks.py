"""A strip as a task."""

from __future__ import annotations

from cleave.core.scheduling.state import Strip
from cleave.core.work import Task, TaskInput, TaskOutput


def bound_task(
    strip: Strip, inputs: tuple[TaskInput, ...], outputs: tuple[TaskOutput, ...]
) -> Task:
    """What is sent of a strip, when it is known in which blocks its inputs lie."""
    state = strip.state
    program = state.work.program
    return Task(
        task_id=strip.task_id,
        program=program if state.is_fixed else program.bind(strip.tile),
        inputs=inputs,
        outputs=outputs,
        flops=strip.flops,
        workspace_bytes=strip.workspace_bytes,
        priority=strip.key[0],
    )
