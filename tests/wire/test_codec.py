"""Frames: what goes in comes out, and whatever else comes is refused with a reason."""

import dataclasses
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave.core.matrix import DType, Matrix, Region
from cleave.core.operations import (
    AttentionShape,
    AttentionTensors,
    attention_forward,
)
from cleave.core.program import Extent, Op, Program, Ref
from cleave.core.work import Fate
from cleave.errors import ProtocolError, VersionError
from cleave.wire import messages
from cleave.wire.codec import (
    MAGIC,
    MAX_FRAME_BYTES,
    decode_from_agent,
    decode_from_server,
    encode,
)
from cleave.wire.messages import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    PROTOCOL,
    Cancel,
    Finished,
    Goodbye,
    Hello,
    InputSpec,
    Message,
    OutputSpec,
    Paused,
    Piece,
    Refused,
    ResultPiece,
    RunTask,
    Welcome,
)

MM = Program(n_inputs=2, ops=(Op("mm", (Ref(0), Ref(1))),), outputs=(2,))
TASK = RunTask(
    task_id=7,
    program=MM,
    inputs=(
        InputSpec(1, 4, 3, DType.F32, 0, 4, 0, 3, 0),
        InputSpec(2, 3, 5, DType.F32, 0, 3, 1, 5, 3),
    ),
    outputs=(OutputSpec(Fate.RETURNED, 0, 4, 4, DType.F32),),
    workspace_bytes=64,
    priority=-1,
)
HELLO = Hello("token", "laptop", "0.1", "numpy", "Linux", ("mm",), (DType.F32,), 1 << 30)
FROM_AGENT = [
    HELLO,
    Finished(1, 0.5, 10),
    Refused(1, "memory", (4, 5), 100),
    Paused("on battery, 80 %"),
    Goodbye("bye"),
]
FROM_SERVER = [Welcome(3, "0.1", 10.0), TASK, Cancel((1, 2)), Goodbye("bye")]


@pytest.mark.parametrize("message", FROM_AGENT, ids=lambda message: type(message).__name__)
def test_what_an_agent_says_arrives_as_it_was(message: Message) -> None:
    decoded, payload = decode_from_agent(encode(message))
    assert (decoded, len(payload)) == (message, 0)


@pytest.mark.parametrize("message", FROM_SERVER, ids=lambda message: type(message).__name__)
def test_what_a_server_says_arrives_as_it_was(message: Message) -> None:
    decoded, payload = decode_from_server(encode(message))
    assert (decoded, len(payload)) == (message, 0)


def test_programs_of_attention_travel_once_bound() -> None:
    def matrix(number: int, n_cols: int) -> Matrix:
        return Matrix(number, 2, n_cols, DType.F32)

    shape = AttentionShape(
        batch=2, kv_heads=2, group=3, q_len=4, kv_len=4, head_dim=8, value_dim=8,
        causal=True, scale=0.5, dropout=0.1, seed=2**63,
    )  # fmt: skip
    tensors = AttentionTensors(
        q=matrix(1, 192), k=matrix(2, 64), v=matrix(3, 64), out=matrix(4, 192),
        lse=matrix(5, 24), mask=None,
    )  # fmt: skip
    program = attention_forward(shape, tensors).program.bind(Region(0, 2, 1, 2))
    task = RunTask(
        task_id=1,
        program=program,
        inputs=(TASK.inputs[0],) * 3,
        outputs=(TASK.outputs[0],) * 2,
        workspace_bytes=0,
        priority=0,
    )
    assert decode_from_server(encode(task))[0] == task


def test_a_payload_begins_at_a_multiple_of_64_and_is_not_copied() -> None:
    frame = encode(Piece(9, 0, 2, 0, 3), bytes(range(24)))
    message, payload = decode_from_server(frame)
    assert message == Piece(9, 0, 2, 0, 3)
    assert payload.obj is frame
    assert (len(frame) - 24) % 64 == 0
    assert bytes(payload) == bytes(range(24))


def test_the_largest_piece_fits_the_largest_frame() -> None:
    frame = encode(ResultPiece(1, 0, 0, 1, 0, MAX_PAYLOAD_BYTES), bytes(MAX_PAYLOAD_BYTES))
    assert len(decode_from_agent(frame)[1]) == MAX_PAYLOAD_BYTES
    assert len(frame) <= MAX_FRAME_BYTES


def with_protocol(number: int) -> bytes:
    frame = encode(Goodbye("x"))
    return frame[:3] + bytes([number]) + b"\xff" * 5  # what follows may be anything


def test_an_older_agent_is_told_to_upgrade_and_a_newer_one_that_the_server_must() -> None:
    with pytest.raises(VersionError, match="upgrade Cleave on the device"):
        decode_from_agent(with_protocol(PROTOCOL - 1))
    with pytest.raises(VersionError, match="upgrade the server"):
        decode_from_agent(with_protocol(PROTOCOL + 1))


def test_a_newer_server_has_the_device_upgraded_and_an_older_one_itself() -> None:
    with pytest.raises(VersionError, match="upgrade Cleave on this device"):
        decode_from_server(with_protocol(PROTOCOL + 1))
    with pytest.raises(VersionError, match="upgrade the server"):
        decode_from_server(with_protocol(PROTOCOL - 1))


def raw(header: bytes, rest: bytes = b"", length: int | None = None) -> bytes:
    n_bytes = len(header) if length is None else length
    return MAGIC + bytes([PROTOCOL]) + n_bytes.to_bytes(4, "little") + header + rest


def packed(**fields: object) -> bytes:
    return raw(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"GET / HTTP/1.1",
        encode(HELLO)[:7],
        encode(HELLO)[:-1],
        encode(HELLO) + b"x",
        encode(Piece(1, 0, 1, 0, 1)),
        raw(b"", length=MAX_HEADER_BYTES + 1),
        raw(b"", length=2**32 - 1),
        raw(b"\xc1"),
        raw(b"\x82\xa4type\xa6Cancel\xa8task_ids\xdd\xff\xff\xff\xff"),
        raw(b"\x82\xa4type\xa7Goodbye\xa1x" + b"\x91" * 100_000),
        raw(b"\x82\xa4type\xa7Goodbye\xa6reason\xa2\xff\xfe"),
        packed(type="Nonsense"),
        packed(type="Finished", task_id=-1, compute_s=0.0, held_bytes=0),
        packed(type="Finished", task_id=2**60, compute_s=0.0, held_bytes=0),
        packed(type="Finished", task_id=1, compute_s=float("nan"), held_bytes=0),
        packed(type="Finished", task_id=1, compute_s=float("inf"), held_bytes=0),
        packed(type="Goodbye", reason="x" * (messages.MAX_TEXT + 1)),
        packed(type="Refused", task_id=1, reason="", missing=[1] * (messages.MAX_IDS + 1)),
        raw(msgspec.msgpack.encode(HELLO), b"\0" * 200 + bytes(MAX_PAYLOAD_BYTES)),
    ],
)
def test_a_bad_frame_is_a_protocol_error(frame: bytes) -> None:
    for decode in (decode_from_agent, decode_from_server):
        with pytest.raises(ProtocolError):
            decode(frame)


def replaced(**changes: object) -> RunTask:
    return msgspec.structs.replace(TASK, **changes)


def replaced_input(**changes: object) -> RunTask:
    return replaced(inputs=(msgspec.structs.replace(TASK.inputs[0], **changes), TASK.inputs[1]))


def replaced_program(**changes: object) -> RunTask:
    return replaced(program=dataclasses.replace(MM, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "task",
    [
        replaced(inputs=TASK.inputs[:1]),
        replaced(outputs=()),
        replaced(outputs=TASK.outputs * 2),
        replaced_input(handle=0),
        replaced_input(n_rows=0),
        replaced_input(n_cols=2**40),
        replaced_input(row0=4),
        replaced_input(row1=5),
        replaced_input(col1=4),
        replaced_input(resident_rows=5),
        replaced(outputs=(OutputSpec(Fate.KEPT, 0, 4, 4, DType.F32),)),
        replaced(outputs=(OutputSpec(Fate.RETURNED, 3, 4, 4, DType.F32),)),
        replaced_program(outputs=(3,)),
        replaced_program(ops=(Op("mm", (Ref(0), Ref(2))),)),
        replaced_program(ops=(Op("mm", (Ref(0), Ref(-1))),)),
        replaced_program(ops=(Op("view", (Ref(0), (Extent("n_rows"), 1))),)),
        replaced_program(ops=(Op("mm", (0,) * 300),)),
        replaced_program(ops=(Op("mm", (Ref(0), Ref(1)), n_results=10**9),)),
    ],
)
def test_a_task_whose_parts_do_not_fit_together_is_a_protocol_error(task: RunTask) -> None:
    with pytest.raises(ProtocolError):
        decode_from_server(encode(task))


def test_what_is_too_large_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="payload"):
        encode(Piece(1, 0, 1, 0, 1), bytes(MAX_PAYLOAD_BYTES + 1))
    with pytest.raises(ProtocolError, match="header"):
        encode(Cancel(tuple(range(10**6))))


def decode_or_refuse(frame: bytes) -> None:
    for decode in (decode_from_agent, decode_from_server):
        try:
            decode(frame)
        except ProtocolError:
            continue


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(body: bytes) -> None:
    decode_or_refuse(body)
    decode_or_refuse(raw(body))


@given(st.sampled_from([*FROM_AGENT, *FROM_SERVER]), st.data())
def test_damaged_frames_are_read_or_refused(message: Message, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    for position in data.draw(st.lists(st.integers(0, len(frame) - 1), max_size=4)):
        frame[position] ^= 1 << data.draw(st.integers(0, 7))
    decode_or_refuse(bytes(frame[: data.draw(st.integers(0, len(frame)))]))


@settings(max_examples=50)
@given(st.lists(st.sampled_from([b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc6\x7f"])))
def test_lengths_that_lie_do_not_make_it_allocate(parts: list[bytes]) -> None:
    header = b"\x82\xa4type\xa6Cancel\xa8task_ids" + b"".join(parts)
    tracemalloc.start()
    try:
        decode_or_refuse(raw(header))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20
