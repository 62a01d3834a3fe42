"""Programs: order, lifetimes, and refusal of all that is not listed."""

import weakref
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.compute.run import get, put

from cleave.compute.backend import Backend
from cleave.compute.executor import (
    Function,
    memory_error,
    run_program,
    sizes_without_minus_one,
)
from cleave.compute.vocabulary import VOCABULARY
from cleave.core.matrix import DType, Region
from cleave.core.program import Extent, Op, Program, Ref
from cleave.errors import DeviceMemoryError, ProgramError


class Tracked(np.ndarray):
    """An array that says when it dies."""


def tracked() -> np.ndarray:
    return np.zeros((2, 2)).view(Tracked)


def test_a_value_is_gone_right_after_its_last_use() -> None:
    alive: list[weakref.ref] = []
    counts: list[int] = []

    def step(x: np.ndarray) -> np.ndarray:
        counts.append(sum(ref() is not None for ref in alive))
        result = tracked()
        alive.append(weakref.ref(result))
        return result

    chain = Program(1, tuple(Op("relu", (Ref(i),)) for i in range(5)), (5,))
    run_program(chain, [tracked()], {"relu": step})
    # Each step sees its own argument and nothing older.
    assert counts == [0, 1, 1, 1, 1]


def test_results_nobody_reads_are_dropped_and_outputs_are_kept() -> None:
    program = Program(
        1, (Op("relu", (Ref(0),)), Op("clone", (Ref(0),)), Op("t", (Ref(2),))), (1, 3, 0, 1)
    )
    x = np.arange(6.0).reshape(2, 3)
    functions: dict[str, Function] = {"relu": np.abs, "clone": np.copy, "t": np.transpose}
    outputs = run_program(program, [x], functions)
    assert [output.shape for output in outputs] == [(2, 3), (3, 2), (2, 3), (2, 3)]
    assert outputs[0] is outputs[3]
    assert outputs[2] is x


def test_a_program_without_ops_returns_its_inputs() -> None:
    assert run_program(Program(2, (), (1, 0)), ["a", "b"], {}) == ["b", "a"]


MISUSES: list[tuple[tuple[Op, ...], str]] = [
    ((Op("os.system", (Ref(0),)),), "op 0 is 'os.system', which is not among"),
    ((Op("__class__", (Ref(0),)),), "op 0 is '__class__'"),
    ((Op("relu", (Ref(0),)), Op("relu", (Ref(2),))), r"op 1 \(relu\) reads value 2"),
    ((Op("relu", (Ref(-1),)),), r"op 0 \(relu\) reads value -1"),
    ((Op("relu", (3.0,)),), r"op 0 \(relu\): argument 0 is 3.0, expected a value"),
    ((Op("mm", (Ref(0),)),), r"op 0 \(mm\) has 1 arguments, expected 2 to 2"),
    ((Op("mm", (Ref(0), Ref(0), Ref(0))),), "has 3 arguments"),
    ((Op("mm", (Ref(0), Ref(0))),), r"op 0 \(mm\): "),
    ((Op("add", (Ref(0), True)),), "argument 1 is True, expected a value or a number"),
    ((Op("view", (Ref(0), (Extent("n_rows"), -1))),), "argument 1 is .*Extent.*"),
    ((Op("view", (Ref(0), (4, 4))),), r"op 0 \(view\): "),
    ((Op("view", (Ref(0), (-1, -1))),), "at most one -1"),
    ((Op("view", (Ref(0), (-2, 3))),), "at most one -1"),
    ((Op("view", (Ref(0), (1.5, 2))),), "expected a tuple of whole numbers"),
    ((Op("permute", (Ref(0), (0, 0))),), r"op 0 \(permute\): "),
    ((Op("transpose", (Ref(0), 0, 7)),), r"op 0 \(transpose\): "),
    ((Op("sum", (Ref(0), (5,))),), r"op 0 \(sum\): "),
    ((Op("cast", (Ref(0), "complex64")),), r"op 0 \(cast\): "),
    ((Op("gelu", (Ref(0), "sigmoid")),), r"op 0 \(gelu\): "),
    ((Op("dropout", (Ref(0), 1.5, 1, 0, 0, 3)),), "expected 0 to 1"),
    ((Op("relu", (Ref(0),), 2),), "said to make 2 values, but makes 1"),
    ((Op("relu", (Ref(0),), 1 << 60),), "said to make"),
]


@pytest.mark.parametrize(("ops", "message"), MISUSES)
def test_misuse_is_an_error_that_names_the_op(
    backend: Backend, ops: tuple[Op, ...], message: str
) -> None:
    x = put(backend, np.ones((2, 3)), DType.F32)
    with pytest.raises(ProgramError, match=message):
        backend.run(Program(1, ops, (1,)), [x])


def test_wrong_inputs_and_outputs_are_refused(backend: Backend) -> None:
    x = put(backend, np.ones((2, 3)), DType.F32)
    with pytest.raises(ProgramError, match="takes 2 inputs, but was given 1"):
        backend.run(Program(2, (), (0,)), [x])
    with pytest.raises(ProgramError, match="output is value 1"):
        backend.run(Program(1, (), (1,)), [x])


def test_an_op_of_the_vocabulary_that_a_backend_lacks_is_refused() -> None:
    with pytest.raises(ProgramError, match="op 0 is 'mm', which is not among those here: relu"):
        run_program(Program(1, (Op("mm", (Ref(0), Ref(0))),), (1,)), [0], {"relu": np.abs})


def test_both_backends_have_the_whole_vocabulary(backend: Backend) -> None:
    assert backend.ops == frozenset(VOCABULARY)


def test_a_bound_program_runs(backend: Backend) -> None:
    program = Program(1, (Op("view", (Ref(0), (Extent("n_cols", 3), -1))),), (1,))
    x = put(backend, np.arange(12.0).reshape(2, 6), DType.F32)
    (y,) = backend.run(program.bind(Region(0, 5, 4, 6)), [x])
    assert get(backend, y, DType.F32).shape == (6, 2)


arguments = st.one_of(
    st.integers(-3, 5),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.builds(Ref, st.integers(-2, 6)),
    st.lists(st.integers(-2, 4), max_size=3).map(tuple),
)
ops = st.builds(
    Op,
    st.sampled_from([*VOCABULARY, "nonsense"]),
    st.lists(arguments, max_size=5).map(tuple),
    st.integers(-1, 3),
)


@given(ops=st.lists(ops, max_size=4), outputs=st.lists(st.integers(-1, 6), max_size=3))
def test_random_programs_run_or_are_refused(ops: Sequence[Op], outputs: Sequence[int]) -> None:
    from tests.compute.conftest import BACKENDS

    for backend in BACKENDS.values():
        x = put(backend, np.ones((2, 3)), DType.F32)
        try:
            results = backend.run(Program(1, tuple(ops), tuple(outputs)), [x])
        except (ProgramError, DeviceMemoryError):
            continue
        assert len(results) == len(outputs)


@pytest.mark.parametrize(
    ("shape", "sizes", "expected"),
    [
        ((2, 6), (3, -1), (3, 4)),
        ((2, 6), (3, 4), (3, 4)),
        ((0, 4, 5), (0, -1), (0, 20)),
        ((2, 0), (2, -1), (2, 0)),
        ((0,), (-1,), (0,)),
    ],
)
def test_minus_one_is_made_a_number(
    shape: tuple[int, ...], sizes: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert sizes_without_minus_one(shape, sizes) == expected


@pytest.mark.parametrize(
    ("text", "needed_bytes"),
    [
        ("Unable to allocate 2.00 TiB for an array", 2 << 40),
        ("you tried to allocate 4000 bytes. Error code 12", 4000),
        ("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has", 3 << 29),
        ("no figure", 0),
    ],
)
def test_memory_errors_say_how_much_was_asked_for(text: str, needed_bytes: int) -> None:
    error = memory_error(MemoryError(text), budget_bytes=7)
    assert (error.needed_bytes, error.budget_bytes) == (needed_bytes, 7)
