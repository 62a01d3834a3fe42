"""Messages between server and agent, and the limits on what comes from outside.

A frame is a fixed prefix, a msgpack header (one of these structs) and, for pieces, raw
little-endian elements. An agent knows blocks by their number alone (a *handle*); what they mean
stays on the server.
"""

from __future__ import annotations

from typing import Union

import msgspec

from cleave.core.matrix import DType
from cleave.core.program import Program
from cleave.core.work import Fate

PROTOCOL = 1
MAX_HEADER_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 16 << 20
MAX_TEXT = 4096
PIECE_BYTES = 1 << 20


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=False):
    """What every message is."""


# Agent to server ---------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The first message of an agent."""

    token: str
    name: str
    agent_version: str
    backend: str
    platform: str
    ops: tuple[str, ...]
    dtypes: tuple[DType, ...]
    memory_bytes: int


class ResultPiece(Message, frozen=True):
    """Part of a returned output, in coordinates of that output; the elements follow."""

    task_id: int
    output: int
    row0: int
    row1: int
    col0: int
    col1: int


class Finished(Message, frozen=True):
    """A task is done and all pieces of its returned outputs have been sent."""

    task_id: int
    compute_s: float
    held_bytes: int


class Refused(Message, frozen=True):
    """A task cannot be run here: too little memory, or blocks that are not held."""

    task_id: int
    reason: str
    missing: tuple[int, ...] = ()
    needed_bytes: int = 0


class Failed(Message, frozen=True):
    """A task met an error."""

    task_id: int
    error: str


class Paused(Message, frozen=True):
    """The owner's machine comes first: nothing is computed until `Resumed`."""

    reason: str


class Resumed(Message, frozen=True):
    """Ready for tasks again."""


# Server to agent ---------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """The agent is in; tasks may follow (the first of them test and measure it)."""

    device_id: int
    server_version: str
    heartbeat_s: float


class Rejected(Message, frozen=True):
    """The agent may not join.

    Attributes:
        code: ``"token"``, ``"protocol"``, ``"selftest"``, ``"full"``, ``"failing"``.
        reason: What was wrong and what to do.
        retry: Whether trying again unchanged can help.
    """

    code: str
    reason: str
    retry: bool


class InputSpec(msgspec.Struct, frozen=True, array_like=True):
    """An input of a task: a view, in its coordinates, of a block that is or will be held."""

    handle: int
    n_rows: int
    n_cols: int
    dtype: DType
    row0: int
    row1: int
    col0: int
    col1: int


class OutputSpec(msgspec.Struct, frozen=True, array_like=True):
    """An output of a task; the handle is 0 if it is returned."""

    fate: Fate
    handle: int
    n_rows: int
    n_cols: int
    dtype: DType


class RunTask(Message, frozen=True):
    """Run a program once the rows that its inputs view are there. It allocates new blocks."""

    task_id: int
    program: Program
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    workspace_bytes: int
    priority: int


class Piece(Message, frozen=True):
    """The next rows (or part of a row) of a block, in its coordinates; the elements follow."""

    handle: int
    row0: int
    row1: int
    col0: int
    col1: int


class Cancel(Message, frozen=True):
    """The results of these tasks are no longer wanted."""

    task_ids: tuple[int, ...]


class Drop(Message, frozen=True):
    """Forget these blocks."""

    handles: tuple[int, ...]


# Both ways ---------------------------------------------------------------------------------------


class Goodbye(Message, frozen=True):
    """The sender leaves on purpose."""

    reason: str


AgentMessage = Union[Hello, ResultPiece, Finished, Refused, Failed, Paused, Resumed, Goodbye]
ServerMessage = Union[Welcome, Rejected, RunTask, Piece, Cancel, Drop, Goodbye]
