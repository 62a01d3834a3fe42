"""Small tasks on small blocks, as a server would send them."""

from __future__ import annotations

from cleave.core.matrix import DType
from cleave.core.program import Op, Program, Ref
from cleave.core.work import Fate
from cleave.wire.messages import InputSpec, OutputSpec, RunTask

MM = Program(n_inputs=2, ops=(Op("mm", (Ref(0), Ref(1))),), outputs=(2,))
UNKNOWN = Program(n_inputs=2, ops=(Op("launch", (Ref(0), Ref(1))),), outputs=(2,))


def block(handle: int, n_rows: int, n_cols: int, *, resident_rows: int = 0) -> InputSpec:
    """All of a block of fp32."""
    return InputSpec(handle, n_rows, n_cols, DType.F32, 0, n_rows, 0, n_cols, resident_rows)


def rows(whole: InputSpec, row0: int, row1: int, *, resident_rows: int) -> InputSpec:
    """Some rows of a block."""
    return InputSpec(
        whole.handle, whole.n_rows, whole.n_cols, whole.dtype,
        row0, row1, 0, whole.n_cols, resident_rows,
    )  # fmt: skip


def returned(n_rows: int, n_cols: int) -> OutputSpec:
    """An fp32 output that goes back."""
    return OutputSpec(Fate.RETURNED, 0, n_rows, n_cols, DType.F32)


def kept(handle: int, n_rows: int, n_cols: int) -> OutputSpec:
    """An fp32 output that stays as a block."""
    return OutputSpec(Fate.KEPT, handle, n_rows, n_cols, DType.F32)


def added(handle: int, n_rows: int, n_cols: int) -> OutputSpec:
    """An fp32 output that is added to a block."""
    return OutputSpec(Fate.ADDED, handle, n_rows, n_cols, DType.F32)


def gemm(
    task_id: int,
    a: InputSpec,
    b: InputSpec,
    output: OutputSpec | None = None,
    *,
    priority: int = 0,
    workspace_bytes: int = 0,
    program: Program = MM,
) -> RunTask:
    """The product of two views."""
    if output is None:
        output = returned(a.row1 - a.row0, b.col1 - b.col0)
    return RunTask(
        task_id=task_id,
        program=program,
        inputs=(a, b),
        outputs=(output,),
        workspace_bytes=workspace_bytes,
        priority=priority,
    )
