"""The cases a joining device must pass: honest backends do, faulty ones do not."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.compute.run import get, put, run_case

from cleave.compute.backend import Array, Backend
from cleave.compute.elements import decode, encode, from_bytes
from cleave.compute.executor import run_program
from cleave.compute.numpy_backend import NumpyBackend
from cleave.compute.numpy_ops import FUNCTIONS
from cleave.compute.probe import (
    PROBE_SIZE,
    link_program,
    probe_block,
    rate_flops,
    rate_program,
)
from cleave.compute.selftest import selftest_cases
from cleave.compute.vocabulary import VOCABULARY
from cleave.core.matrix import DType
from cleave.core.work import Fate
from cleave.wire.codec import decode_from_server
from cleave.wire.codec import encode as encode_frame
from cleave.wire.messages import InputSpec, OutputSpec, RunTask

FLOATS = (DType.F64, DType.F32, DType.BF16, DType.F16)
ALL_OPS = frozenset(VOCABULARY)


def test_both_backends_pass(backend: Backend) -> None:
    cases = selftest_cases(DType, ALL_OPS, largest=(300, 5000, 4000))
    assert [fault for case in cases if (fault := run_case(backend, case))] == []
    assert len({case.name for case in cases}) == len(cases)


def test_cases_are_the_same_each_time() -> None:
    first, second = (selftest_cases(FLOATS, ALL_OPS) for _ in range(2))
    for ours, theirs in zip(first, second, strict=True):
        assert (ours.name, ours.program) == (theirs.name, theirs.program)
        for a, b in zip(ours.inputs, theirs.inputs, strict=True):
            assert a.payload() == b.payload()


def test_programs_cross_the_wire_unchanged() -> None:
    cases = selftest_cases(FLOATS, ALL_OPS)
    for program in (*(case.program for case in cases), rate_program(DType.BF16), link_program()):
        inputs = (InputSpec(1, 1, 1, DType.F32, 0, 1, 0, 1, 0),) * program.n_inputs
        outputs = (OutputSpec(Fate.RETURNED, 0, 1, 1, DType.F32),) * len(program.outputs)
        message = RunTask(1, program, inputs, outputs, 0, 0)
        received, _ = decode_from_server(encode_frame(message))
        assert received.program == program  # type: ignore[union-attr]


def test_a_device_is_tried_on_what_it_announces() -> None:
    assert selftest_cases((DType.I64, DType.U8), ALL_OPS) == []
    without_attention = selftest_cases((DType.F32,), frozenset({"mm", "t"}))
    assert all("attention" not in case.name for case in without_attention)
    assert any("attention" in case.name for case in selftest_cases((DType.F32,), ALL_OPS))


class Faulty(NumpyBackend):
    """A device whose products go wrong in some way."""

    def __init__(self, mm: Callable[[Array, Array], Array]) -> None:
        super().__init__()
        self._functions = {**FUNCTIONS, "mm": mm}

    def run(self, program, inputs):  # type: ignore[no-untyped-def]
        with np.errstate(all="ignore"):
            return run_program(program, inputs, self._functions)


def right(a: Array, b: Array) -> Array:
    return FUNCTIONS["mm"](a, b)


def tf32(a: Array, b: Array) -> Array:
    return right(*((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b)))


def summed_in_bf16(a: Array, b: Array) -> Array:
    total = encode(np.zeros((a.shape[0], b.shape[1])), DType.BF16)
    for i in range(a.shape[1]):
        product = decode(a)[:, i : i + 1] * decode(b)[i : i + 1]
        total = encode(decode(total) + product, DType.BF16)
    return total


def without_nan(a: Array, b: Array) -> Array:
    return np.nan_to_num(right(a, b))


def last_column_forgotten(a: Array, b: Array) -> Array:
    product = right(a, b)
    product[:, product.shape[1] // 8 * 8 :] = 0
    return product


@pytest.mark.parametrize(
    ("fault", "dtype"),
    [
        (tf32, DType.F32),
        (summed_in_bf16, DType.BF16),
        (without_nan, DType.F32),
        (last_column_forgotten, DType.F64),
    ],
)
def test_faulty_products_are_found(fault: Callable[[Array, Array], Array], dtype: DType) -> None:
    device = Faulty(fault)
    faults = [run_case(device, case) for case in selftest_cases((dtype,), frozenset({"mm", "t"}))]
    assert any(faults)


def test_a_fault_names_the_element() -> None:
    case = selftest_cases((DType.F32,), frozenset({"mm", "t"}))[0]
    shape = case.output_shapes[0]
    product = case.expected[0].values.astype(np.float32)
    assert case.check([product.tobytes()]) is None
    product[3, 5] += 1
    fault = case.check([product.tobytes()])
    assert fault is not None
    assert f"is wrong in 1 of {shape[0] * shape[1]} elements: [3, 5]" in fault
    assert case.check([b"123"]) == f"{case.name}: result 0 is not {4 * product.size} bytes long"
    assert case.check([]) == f"{case.name}: 0 results, expected 1"


def test_a_finite_result_where_infinity_belongs_is_wrong() -> None:
    case = next(c for c in selftest_cases((DType.F32,), ALL_OPS) if "NaN" in c.name)
    values = case.expected[0].values
    assert np.isnan(values).any()
    assert np.isinf(values).any()
    assert case.check([np.nan_to_num(values, posinf=9, neginf=-9).astype(np.float32).tobytes()])


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_rate_probe_stays_finite(backend: Backend, dtype: DType) -> None:
    block = probe_block()
    (total,) = backend.run(rate_program(dtype, 3), [put(backend, block.elements, block.dtype)])
    assert total.shape == (1, 1)
    assert np.isfinite(get(backend, total, DType.F32)).all()
    assert rate_flops(3) == 6 * PROBE_SIZE**3


def test_the_link_probe_comes_back_as_it_was(backend: Backend) -> None:
    block = probe_block()
    (copy,) = backend.run(link_program(), [put(backend, block.elements, block.dtype)])
    payload = backend.read(copy, DType.F32)
    assert payload == block.payload()
    assert from_bytes(payload, (PROBE_SIZE, PROBE_SIZE), DType.F32).nbytes == 1 << 20
