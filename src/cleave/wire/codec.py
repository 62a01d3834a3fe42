"""Frames: a message and its payload to bytes and back; what comes from outside is checked first.

A frame is ``b"CLV"``, the protocol number in one byte (at this place in every version), the
header's length as a little-endian u32, the msgpack header, and for pieces zeros up to a multiple
of 64 and then the elements. See `docs/protocol.md`.
"""

from __future__ import annotations

from typing import TypeVar, Union

import msgspec

from cleave.core.program import Extent, Program, Ref
from cleave.core.work import Fate
from cleave.errors import ProtocolError, VersionError
from cleave.wire.messages import (
    MAX_HEADER_BYTES,
    MAX_OPERANDS,
    MAX_PAYLOAD_BYTES,
    PROTOCOL,
    AgentMessage,
    InputSpec,
    Message,
    OutputSpec,
    Piece,
    ResultPiece,
    RunTask,
    ServerMessage,
)

MAGIC = b"CLV"
PREFIX_BYTES = 8
ALIGNMENT = 64
MAX_FRAME_BYTES = PREFIX_BYTES + MAX_HEADER_BYTES + ALIGNMENT + MAX_PAYLOAD_BYTES
MAX_OPS = 16384
MAX_OP_ARGUMENTS = 256

Buffer = Union[bytes, bytearray, memoryview]
M = TypeVar("M")

_encoder = msgspec.msgpack.Encoder()
_from_agent = msgspec.msgpack.Decoder(AgentMessage)
_from_server = msgspec.msgpack.Decoder(ServerMessage)


def encode(message: Message, payload: Buffer = b"") -> bytes:
    """The frame of a message; the payload is copied into it once.

    Args:
        message: Any message.
        payload: The elements of a piece as bytes (a memoryview of format ``"B"``), else empty.

    Raises:
        ProtocolError: If header or payload exceed their limits.
    """
    header = _encoder.encode(message)
    _check_lengths(len(header), len(payload))
    prefix = MAGIC + bytes((PROTOCOL,)) + len(header).to_bytes(4, "little")
    if not len(payload):
        return prefix + header
    padding = bytes(-(PREFIX_BYTES + len(header)) % ALIGNMENT)
    return b"".join((prefix, header, padding, payload))


def decode_from_agent(frame: bytes) -> tuple[AgentMessage, memoryview]:
    """The message that an agent sent, and a view of its payload in the frame.

    Raises:
        VersionError: If the agent speaks another protocol; the text says what to upgrade.
        ProtocolError: If the frame breaks any rule.
    """
    protocol = _protocol(frame)
    if protocol < PROTOCOL:
        raise VersionError(
            f"the agent speaks protocol {protocol}, this server {PROTOCOL}: "
            "upgrade Cleave on the device"
        )
    if protocol > PROTOCOL:
        raise VersionError(
            f"the agent speaks protocol {protocol}, this server {PROTOCOL}: upgrade the server"
        )
    return _decode(frame, _from_agent)


def decode_from_server(frame: bytes) -> tuple[ServerMessage, memoryview]:
    """The message that a server sent, and a view of its payload in the frame.

    Raises:
        VersionError: If the server speaks another protocol; the text says what to upgrade.
        ProtocolError: If the frame breaks any rule.
    """
    protocol = _protocol(frame)
    if protocol > PROTOCOL:
        raise VersionError(
            f"the server speaks protocol {protocol}, this agent {PROTOCOL}: "
            "upgrade Cleave on this device"
        )
    if protocol < PROTOCOL:
        raise VersionError(
            f"the server speaks protocol {protocol}, this agent {PROTOCOL}: upgrade the server"
        )
    return _decode(frame, _from_server)


def _protocol(frame: bytes) -> int:
    if len(frame) < PREFIX_BYTES or frame[:3] != MAGIC:
        raise ProtocolError(
            f"a frame of {len(frame)} bytes that does not begin as Cleave's do: "
            "is the other side a Cleave server or agent?"
        )
    return frame[3]


def _decode(frame: bytes, decoder: msgspec.msgpack.Decoder[M]) -> tuple[M, memoryview]:
    header_bytes = int.from_bytes(frame[4:PREFIX_BYTES], "little")
    header_end = PREFIX_BYTES + header_bytes
    payload_start = header_end + -header_end % ALIGNMENT
    payload_bytes = max(0, len(frame) - payload_start)
    _check_lengths(header_bytes, payload_bytes)
    view = memoryview(frame)
    if header_end > len(frame):
        raise ProtocolError(f"a header of {header_bytes} bytes in a frame of {len(frame)}")
    try:
        message = decoder.decode(view[PREFIX_BYTES:header_end])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"an unreadable header: {error}") from None
    has_payload = isinstance(message, (Piece, ResultPiece))
    if has_payload and not payload_bytes:
        raise ProtocolError(f"a {type(message).__name__} without elements")
    if not has_payload and len(frame) != header_end:
        raise ProtocolError(f"a {type(message).__name__} with {len(frame) - header_end} bytes more")
    if isinstance(message, RunTask):
        _check_task(message)
    return message, view[payload_start:]


def _check_lengths(header_bytes: int, payload_bytes: int) -> None:
    if header_bytes > MAX_HEADER_BYTES:
        raise ProtocolError(f"a header of {header_bytes} bytes, at most {MAX_HEADER_BYTES}")
    if payload_bytes > MAX_PAYLOAD_BYTES:
        raise ProtocolError(f"a payload of {payload_bytes} bytes, at most {MAX_PAYLOAD_BYTES}")


def _check_task(task: RunTask) -> None:
    program = task.program
    if program.n_inputs != len(task.inputs) or len(program.outputs) != len(task.outputs):
        raise ProtocolError(
            f"task {task.task_id}: its program has {program.n_inputs} inputs and "
            f"{len(program.outputs)} outputs, its lists {len(task.inputs)} and {len(task.outputs)}"
        )
    for spec in task.inputs:
        _check_input(task.task_id, spec)
    for output in task.outputs:
        _check_output(task.task_id, output)
    _check_program(task.task_id, program)


def _check_input(task_id: int, spec: InputSpec) -> None:
    inside = spec.row0 < spec.row1 <= spec.n_rows and spec.col0 < spec.col1 <= spec.n_cols
    if not inside or spec.handle == 0 or spec.resident_rows > spec.n_rows:
        raise ProtocolError(f"task {task_id}: an input with sizes that do not fit together: {spec}")


def _check_output(task_id: int, spec: OutputSpec) -> None:
    if (spec.fate is Fate.RETURNED) != (spec.handle == 0):
        raise ProtocolError(f"task {task_id}: an output is returned, or has a handle: {spec}")


def _check_program(task_id: int, program: Program) -> None:
    if len(program.ops) > MAX_OPS:
        raise ProtocolError(f"task {task_id}: {len(program.ops)} ops, at most {MAX_OPS}")
    n_values = program.n_inputs
    for op in program.ops:
        if len(op.args) > MAX_OP_ARGUMENTS or not 0 < op.n_results <= MAX_OPERANDS:
            raise ProtocolError(
                f"task {task_id}: {op.name[:64]!r} has {len(op.args)} arguments and "
                f"{op.n_results} results, at most {MAX_OP_ARGUMENTS} and {MAX_OPERANDS}"
            )
        for argument in op.args:
            for scalar in argument if isinstance(argument, tuple) else (argument,):
                if isinstance(scalar, Extent):
                    raise ProtocolError(f"task {task_id}: {op.name[:64]!r} is not bound to a tile")
                if isinstance(scalar, Ref) and not 0 <= scalar.value < n_values:
                    raise ProtocolError(
                        f"task {task_id}: {op.name[:64]!r} uses value {scalar.value} of {n_values}"
                    )
        n_values += op.n_results
    if not all(0 <= value < n_values for value in program.outputs):
        raise ProtocolError(f"task {task_id}: an output is none of its {n_values} values")
