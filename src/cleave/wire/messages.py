"""Messages between server and agent, and the limits on what comes from outside.

A frame is a fixed prefix, a msgpack header (one of these structs) and, for pieces, raw
little-endian elements. An agent knows blocks by their number alone (a *handle*); what they mean
stays on the server. The limits named here hold for whatever is decoded (`cleave.wire.codec`).
"""

from __future__ import annotations

from typing import Annotated, Union

import msgspec
from msgspec import Meta

from cleave.core.matrix import DType
from cleave.core.program import Program
from cleave.core.work import Fate

PROTOCOL = 1
MAX_HEADER_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 16 << 20
MAX_TEXT = 4096
MAX_NAMES = 1024
MAX_IDS = 65536
MAX_OPERANDS = 1024
PIECE_BYTES = 1 << 20
LONGEST_HEARTBEAT_S = 3600.0

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Number = Annotated[int, Meta(ge=0, le=2**53 - 1)]  # what JavaScript can read as well
Place = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Names = Annotated[tuple[Text, ...], Meta(max_length=MAX_NAMES)]
Ids = Annotated[tuple[Number, ...], Meta(max_length=MAX_IDS)]


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=False):
    """What every message is."""


# Agent to server ---------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The first message of an agent."""

    token: Text
    name: Text
    agent_version: Text
    backend: Text
    platform: Text
    ops: Names
    dtypes: Annotated[tuple[DType, ...], Meta(max_length=MAX_NAMES)]
    memory_bytes: Number


class ResultPiece(Message, frozen=True):
    """Part of a returned output, in coordinates of that output; the elements follow."""

    task_id: Number
    output: Place
    row0: Place
    row1: Size
    col0: Place
    col1: Size


class Finished(Message, frozen=True):
    """A task is done and all pieces of its returned outputs have been sent."""

    task_id: Number
    compute_s: Seconds
    held_bytes: Number


class Refused(Message, frozen=True):
    """A task cannot be run here.

    Attributes:
        task_id: The task.
        reason: ``"memory"``, ``"missing"`` or ``"paused"``.
        missing: Handles named by the task that are not held, or not as far as the server
            believes: they are forgotten, and pieces for them ignored until a task makes them.
        needed_bytes: For ``"memory"``: what the task would have needed on top of what is held.
    """

    task_id: Number
    reason: Text
    missing: Ids = ()
    needed_bytes: Number = 0


class Failed(Message, frozen=True):
    """A task met an error."""

    task_id: Number
    error: Text


class Cancelled(Message, frozen=True):
    """A task has been dropped on request: nothing of it was kept, and its memory is free again."""

    task_id: Number


class Paused(Message, frozen=True):
    """The owner's machine comes first: open tasks are dropped, blocks are kept, until `Resumed`."""

    reason: Text


class Resumed(Message, frozen=True):
    """Ready for tasks again."""


# Server to agent ---------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """The agent is in; tasks may follow (the first of them test and measure it)."""

    device_id: Number
    server_version: Text
    heartbeat_s: Seconds


class Rejected(Message, frozen=True):
    """The agent may not join.

    Attributes:
        code: ``"token"``, ``"protocol"``, ``"selftest"``, ``"full"``, ``"failing"``.
        reason: What was wrong and what to do.
        retry: Whether trying again unchanged can help.
    """

    code: Text
    reason: Text
    retry: bool


class InputSpec(msgspec.Struct, frozen=True, array_like=True):
    """An input of a task: a view, in its coordinates, of a block that is or will be held.

    Attributes:
        handle: The block's number, from 1.
        n_rows: Rows of the whole block.
        n_cols: Columns of the whole block.
        dtype: Of its elements.
        row0: First row of the view; the following three bound it likewise.
        row1: One past its last row.
        col0: Its first column.
        col1: One past its last column.
        resident_rows: Rows from the top that the server believes are there, as their pieces were
            sent before this message. An agent that holds fewer refuses; at 0 a block that is not
            held is made.
    """

    handle: Number
    n_rows: Size
    n_cols: Size
    dtype: DType
    row0: Place
    row1: Size
    col0: Place
    col1: Size
    resident_rows: Place


class OutputSpec(msgspec.Struct, frozen=True, array_like=True):
    """An output of a task; the handle is 0 if it is returned."""

    fate: Fate
    handle: Number
    n_rows: Size
    n_cols: Size
    dtype: DType


class RunTask(Message, frozen=True):
    """Run a program once the rows that its inputs view are there. It allocates new blocks."""

    task_id: Number
    program: Program
    inputs: Annotated[tuple[InputSpec, ...], Meta(max_length=MAX_OPERANDS)]
    outputs: Annotated[tuple[OutputSpec, ...], Meta(min_length=1, max_length=MAX_OPERANDS)]
    workspace_bytes: Number
    priority: int


class Piece(Message, frozen=True):
    """The next rows (or part of a row) of a block, in its coordinates; the elements follow.

    It may repeat what was sent before, but leaves no gap (`cleave.wire.pieces`).
    """

    handle: Number
    row0: Place
    row1: Size
    col0: Place
    col1: Size


class Cancel(Message, frozen=True):
    """The results of these tasks are no longer wanted.

    Each that has had no answer yet gets one: `Cancelled` as a rule, or whatever it met first.
    """

    task_ids: Ids


class Drop(Message, frozen=True):
    """Forget these blocks."""

    handles: Ids


# Both ways ---------------------------------------------------------------------------------------


class Goodbye(Message, frozen=True):
    """The sender leaves on purpose."""

    reason: Text


AgentMessage = Union[
    Hello, ResultPiece, Finished, Refused, Failed, Cancelled, Paused, Resumed, Goodbye
]
ServerMessage = Union[Welcome, Rejected, RunTask, Piece, Cancel, Drop, Goodbye]
