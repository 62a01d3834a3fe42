"""Both backends: bytes in, bytes out, and the ops between."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.compute.conftest import BACKENDS
from tests.compute.run import call, get, put

from cleave.compute.backend import Backend
from cleave.compute.cases import stand_in
from cleave.compute.elements import STORAGE, Elements, decode, encode
from cleave.compute.philox import keep_block
from cleave.compute.torch_types import DTYPES
from cleave.core.matrix import DType, Region
from cleave.core.operations import Gemm
from cleave.core.program import Op, Program, Ref
from cleave.core.work import Along
from cleave.errors import DeviceMemoryError, ProgramError, ProtocolError

FLOATS = [DType.F64, DType.F32, DType.BF16, DType.F16]
# Twice the rounding of the type, per unit of |A| @ |B|.
ROUNDING = {DType.F64: 1e-15, DType.F32: 1e-6, DType.F16: 1e-3, DType.BF16: 8e-3}


def numbers(*shape: int, seed: int = 0) -> Elements:
    return np.random.default_rng(seed).standard_normal(shape)


def rounded(values: Elements, dtype: DType) -> Elements:
    return decode(encode(values, dtype)).astype(np.float64)


@pytest.mark.parametrize("dtype", list(DType))
def test_what_is_written_piece_by_piece_is_read_back(backend: Backend, dtype: DType) -> None:
    elements = encode(np.arange(35).reshape(5, 7) % 2, dtype)
    array = backend.empty(5, 7, dtype)
    for region in (Region(0, 2, 0, 7), Region(2, 3, 0, 4), Region(2, 3, 4, 7), Region(3, 5, 0, 7)):
        part = elements[region.row0 : region.row1, region.col0 : region.col1]
        backend.write(array, region, memoryview(np.ascontiguousarray(part).tobytes()))
    assert backend.read(array, dtype).tobytes() == elements.tobytes()
    assert backend.n_bytes(array) == 35 * dtype.itemsize


def test_torch_and_numpy_write_what_the_other_reads(backend: Backend) -> None:
    values = numbers(4, 5)
    for dtype in FLOATS:
        read = [get(b, put(b, values, dtype), dtype) for b in BACKENDS.values()]
        assert (read[0] == read[1]).all()


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", FLOATS)
def test_reading_in_another_type_rounds_as_torch_does(
    backend: Backend, source: DType, target: DType
) -> None:
    values = numbers(6, 6) * 10.0 ** np.arange(-3, 3)
    values[0, :3] = [np.nan, np.inf, -np.inf]
    expected = torch.from_numpy(values).to(DTYPES[source]).to(DTYPES[target])
    got = get(backend, put(backend, values, source), target)
    np.testing.assert_array_equal(got, expected.to(torch.float64).numpy())


def test_views_share_memory_and_reading_them_gathers(backend: Backend) -> None:
    array = put(backend, np.arange(12.0).reshape(3, 4), DType.BF16)
    view = backend.view(array, Region(1, 3, 1, 3))
    assert get(backend, view, DType.F32).tolist() == [[5, 6], [9, 10]]
    put_again = encode(np.array([[50.0, 60.0]]), DType.BF16).tobytes()
    backend.write(array, Region(1, 2, 1, 3), memoryview(put_again))
    assert get(backend, view, DType.F32).tolist() == [[50, 60], [9, 10]]


def test_reading_what_lies_right_copies_nothing(backend: Backend) -> None:
    array = put(backend, np.zeros((3, 4)), DType.BF16)
    payload = backend.read(array, DType.BF16)
    backend.write(array, Region(0, 1, 0, 1), memoryview(b"\x80\x3f"))
    assert payload[:2].tobytes() == b"\x80\x3f"


@pytest.mark.parametrize(
    ("region", "n_bytes"),
    [
        (Region(0, 4, 0, 4), 64),
        (Region(0, 1, 0, 5), 20),
        (Region(-1, 1, 0, 4), 32),
        (Region(2, 1, 0, 4), 0),
        (Region(0, 1, 0, 4), 15),
        (Region(0, 1, 0, 4), 20),
    ],
)
def test_pieces_that_do_not_fit_are_refused(backend: Backend, region: Region, n_bytes: int) -> None:
    with pytest.raises(ProtocolError, match="piece"):
        backend.write(backend.empty(3, 4, DType.F32), region, memoryview(bytes(n_bytes)))


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1)])
def test_empty_arrays_pass(backend: Backend, shape: tuple[int, int]) -> None:
    array = put(backend, np.zeros(shape), DType.BF16)
    assert get(backend, array, DType.F32).shape == shape


@pytest.mark.parametrize("accumulator", FLOATS)
@pytest.mark.parametrize("added", FLOATS)
def test_adding_changes_the_accumulator_in_place(
    backend: Backend, accumulator: DType, added: DType
) -> None:
    total = put(backend, np.full((2, 3), 1.5), accumulator)
    view = backend.view(total, Region(0, 1, 0, 1))
    backend.add(total, put(backend, np.full((2, 3), 0.25), added))
    assert (get(backend, total, accumulator) == 1.75).all()
    assert (get(backend, view, accumulator) == 1.75).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_adding_overflows_to_infinity_and_keeps_nan(backend: Backend, dtype: DType) -> None:
    total = put(backend, np.array([[6e4, np.inf, np.nan]]), DType.F16)
    backend.add(total, put(backend, np.array([[6e4, -np.inf, 1.0]]), dtype))
    np.testing.assert_array_equal(get(backend, total, DType.F16), [[np.inf, np.nan, np.nan]])


def test_an_impossible_allocation_is_a_memory_error(backend: Backend) -> None:
    with pytest.raises(DeviceMemoryError) as caught:
        backend.empty(1 << 40, 1 << 10, DType.F64)
    assert caught.value.needed_bytes == 1 << 53


def test_an_op_without_memory_is_a_memory_error(backend: Backend) -> None:
    column = put(backend, np.ones((1 << 20, 1)), DType.F64)
    outer_sum = Program(1, (Op("t", (Ref(0),)), Op("add", (Ref(0), Ref(1)))), (2,))
    with pytest.raises(DeviceMemoryError) as caught:  # 2**40 numbers
        backend.run(outer_sum, [column])
    assert caught.value.needed_bytes == 1 << 43


# Products ----------------------------------------------------------------------------------------


@given(
    m=st.integers(0, 40),
    n=st.integers(0, 40),
    k=st.integers(0, 40),
    turned=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from(FLOATS),
    form=st.sampled_from(
        [(Along.ROWS, Along.COLS, Along.ALL), (Along.ALL, Along.COLS, Along.ROWS)]
    ),
)
def test_products_of_any_shape_are_right(
    m: int,
    n: int,
    k: int,
    turned: tuple[bool, bool],
    dtype: DType,
    form: tuple[Along, Along, Along],
) -> None:
    a, b = numbers(*((k, m) if turned[0] else (m, k))), numbers(*((n, k) if turned[1] else (k, n)))
    gemm = Gemm(
        name="product",
        a=stand_in(a.shape, dtype),
        b=stand_in(b.shape, dtype),
        out=stand_in((m, n), dtype),
        a_transposed=turned[0],
        b_transposed=turned[1],
    )
    work = gemm.work(m=form[0], n=form[1], k=form[2])
    exact = [rounded(x, dtype) for x in (a, b)]
    left, right = (x.T if t else x for x, t in zip(exact, turned, strict=True))
    for backend in BACKENDS.values():
        inputs = [put(backend, x, dtype) for x in (a, b)]
        (product,) = backend.run(work.program.bind(work.whole), inputs)
        got = get(backend, product, dtype).astype(np.float64)
        assert got.shape == (m, n)
        error = np.abs(got - left @ right)
        assert (error <= ROUNDING[dtype] * (np.abs(left) @ np.abs(right)) + 1e-300).all()


def test_a_product_over_nothing_is_zero(backend: Backend) -> None:
    for dtype in FLOATS:
        (product,) = call(backend, "mm", [numbers(3, 0), numbers(0, 2)], dtype=dtype)
        assert product.tolist() == [[0, 0], [0, 0], [0, 0]]


def test_column_views_of_blocks_are_multiplied(backend: Backend) -> None:
    a, b = numbers(5, 9), numbers(4, 8, seed=1)
    views = [
        backend.view(put(backend, a, DType.F64), Region(1, 4, 2, 6)),
        backend.view(put(backend, b, DType.F64), Region(0, 4, 3, 5)),
    ]
    (product,) = backend.run(Program(2, (Op("mm", (Ref(0), Ref(1))),), (2,)), views)
    np.testing.assert_allclose(
        get(backend, product, DType.F64), a[1:4, 2:6] @ b[:, 3:5], rtol=1e-12
    )


# Other ops ---------------------------------------------------------------------------------------

POINTWISE = [
    ("add", [numbers(3, 4), numbers(3, 4, seed=1)], (), lambda x, y: x + y),
    ("add", [numbers(3, 4), numbers(1, 4, seed=1)], (), lambda x, y: x + y),
    ("add", [numbers(3, 4)], (2.5,), lambda x, s: x + s),
    ("sub", [numbers(3, 4), numbers(3, 1, seed=1)], (), lambda x, y: x - y),
    ("mul", [numbers(3, 4)], (3,), lambda x, s: x * s),
    ("mul", [numbers(3, 4), numbers(3, 4, seed=1)], (), lambda x, y: x * y),
    ("relu", [numbers(3, 4)], (), torch.relu),
    ("gelu", [numbers(30, 4) * 3], (), torch.nn.functional.gelu),
    (
        "gelu",
        [numbers(30, 4) * 3],
        ("tanh",),
        lambda x, _: torch.nn.functional.gelu(x, approximate="tanh"),
    ),
    ("silu", [numbers(3, 4) * 20], (), torch.nn.functional.silu),
    ("softmax", [numbers(3, 4, 5) * 20], (1,), torch.softmax),
    ("softmax", [numbers(3, 4, 5) * 20], (-1,), torch.softmax),
    ("sum", [numbers(3, 4, 5)], (), lambda x: x.sum()),
    ("sum", [numbers(3, 4, 5)], ((0, 2), True), lambda x, d, keep: x.sum(d, keepdim=keep)),
    ("sum", [numbers(3, 4, 5)], ((1,),), lambda x, d: x.sum(d)),
    ("t", [numbers(3, 4)], (), torch.t),
    ("transpose", [numbers(3, 4, 5)], (0, 2), torch.transpose),
    ("permute", [numbers(3, 4, 5)], ((2, 0, 1),), torch.permute),
    ("view", [numbers(3, 4, 5)], ((5, -1),), torch.reshape),
    ("clone", [numbers(3, 4)], (), torch.clone),
    ("bmm", [numbers(2, 3, 4), numbers(2, 4, 5, seed=1)], (), torch.bmm),
    ("cat", [numbers(3, 4), numbers(3, 2, seed=1)], (-1,), lambda x, y, d: torch.cat((x, y), d)),
    ("div", [numbers(3, 4), numbers(3, 4, seed=1) ** 2 + 1], (), torch.div),
    ("div", [numbers(3, 4)], (7,), torch.div),
    ("exp", [numbers(3, 4)], (), torch.exp),
    ("expand", [numbers(3, 1)], ((2, -1, 4),), lambda x, sizes: x.expand(sizes)),
    ("full_like", [numbers(3, 4)], (1.5,), torch.full_like),
    ("mean", [numbers(3, 4)], (), torch.mean),
    ("mean", [numbers(3, 4, 5)], ((-1,), True), lambda x, d, keep: x.mean(d, keepdim=keep)),
    ("neg", [numbers(3, 4)], (), torch.neg),
    (
        "pad",
        [numbers(3, 4, 2)],
        (1, 2, 1),
        lambda x, _, a, b: torch.nn.functional.pad(x, (0, 0, a, b)),
    ),
    ("pad", [numbers(3, 4, 2)], (-1, 0, 3), lambda x, _, a, b: torch.nn.functional.pad(x, (a, b))),
    ("pow", [numbers(3, 4)], (2,), torch.pow),
    ("pow", [numbers(3, 4) ** 2 + 1], (-0.5,), torch.pow),
    ("rsqrt", [numbers(3, 4) ** 2 + 1], (), torch.rsqrt),
    ("sigmoid", [numbers(3, 4) * 50], (), torch.sigmoid),
    ("slice", [numbers(3, 4, 5)], (1, 1, 3), lambda x, d, a, b: x.narrow(d, a, b - a)),
    ("slice", [numbers(3, 4, 5)], (-1, 0, 5), lambda x, d, a, b: x.narrow(d, a, b - a)),
    ("squeeze", [numbers(3, 1, 5)], (1,), torch.squeeze),
    ("squeeze", [numbers(3, 2, 5)], (1,), torch.squeeze),
    ("unsqueeze", [numbers(3, 5)], (-1,), torch.unsqueeze),
    ("tanh", [numbers(3, 4)], (), torch.tanh),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "tensors", "settings", "expected"), POINTWISE)
def test_ops_mean_what_they_mean_in_torch(
    backend: Backend,
    dtype: DType,
    name: str,
    tensors: list[Elements],
    settings: tuple[object, ...],
    expected: object,
) -> None:
    exact = [torch.from_numpy(rounded(x, dtype)) for x in tensors]
    wanted = expected(*exact, *settings).numpy()  # type: ignore[operator]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (got,) = call(backend, name, tensors, *settings, dtype=dtype)
    assert got.shape == wanted.shape
    size = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(got, wanted, rtol=ROUNDING[dtype], atol=ROUNDING[dtype] * size)


def forward_and_grads(
    function: Callable[..., torch.Tensor], tensors: Sequence[Elements], seed: int = 9
) -> tuple[Elements, Elements, list[Elements]]:
    """The output of a function, a gradient of it, and what that makes of its inputs'."""
    leaves = [torch.from_numpy(x).requires_grad_() for x in tensors]
    out = function(*leaves)
    grad = torch.from_numpy(numbers(*out.shape, seed=seed))
    grads = torch.autograd.grad(out, leaves, grad)
    return out.detach().numpy(), grad.numpy(), [each.numpy() for each in grads]


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gradient_of_gelu(backend: Backend, approximate: str) -> None:
    x = numbers(30, 4) * 3
    function = partial(torch.nn.functional.gelu, approximate=approximate)
    _, grad, (wanted,) = forward_and_grads(function, [x])
    (got,) = call(backend, "gelu_backward", [grad, x], approximate, dtype=DType.F64)
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dim", [0, -1])
def test_gradient_of_softmax(backend: Backend, dim: int) -> None:
    out, grad, (wanted,) = forward_and_grads(partial(torch.softmax, dim=dim), [numbers(3, 4) * 5])
    (got,) = call(backend, "softmax_backward", [grad, out], dim, dtype=DType.F64)
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


def test_gradient_of_tanh(backend: Backend) -> None:
    out, grad, (wanted,) = forward_and_grads(torch.tanh, [numbers(3, 4)])
    (got,) = call(backend, "tanh_backward", [grad, out], dtype=DType.F64)
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n_dims", [1, 2])
@pytest.mark.parametrize("is_affine", [True, False])
def test_layer_norm_and_its_gradients(backend: Backend, n_dims: int, is_affine: bool) -> None:
    x = numbers(3, 4, 5)
    shape = x.shape[-n_dims:]
    affine = [numbers(*shape, seed=1), numbers(*shape, seed=2)] if is_affine else []

    def norm(x: torch.Tensor, *affine: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, shape, *affine)  # type: ignore[arg-type]

    wanted, grad, grads = forward_and_grads(norm, [x, *affine])
    arrays = [torch_or_numpy(backend, each) for each in (x, *affine, grad)]
    weight, bias = (Ref(1), Ref(2)) if is_affine else (None, None)
    d_out, first = Ref(len(affine) + 1), len(affine) + 2
    program = Program(
        first,
        (
            Op("layer_norm", (Ref(0), n_dims, weight, bias, 1e-5), 3),
            Op(
                "layer_norm_backward",
                (d_out, Ref(0), Ref(first + 1), Ref(first + 2), n_dims, weight),
                3,
            ),
        ),
        (first, first + 3, first + 4, first + 5),
    )
    out, *got = [np.asarray(each) for each in backend.run(program, arrays)]
    np.testing.assert_allclose(out, wanted, rtol=1e-10, atol=1e-10)
    for one, other in zip(got, grads, strict=False):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def torch_or_numpy(backend: Backend, values: Elements) -> object:
    return torch.from_numpy(values) if backend.name.startswith("torch") else values


@pytest.mark.parametrize("dtype", FLOATS)
def test_where_takes_numbers_in_the_type_of_the_arrays(backend: Backend, dtype: DType) -> None:
    x = numbers(3, 4)
    array = put(backend, x, dtype)
    is_kept = put(backend, (x > 0).astype(np.float64), DType.BOOL)
    program = Program(2, (Op("where", (Ref(0), Ref(1), -2.5)),), (2,))
    (got,) = backend.run(program, [is_kept, array])
    assert backend.n_bytes(got) == 12 * STORAGE[dtype].itemsize
    wanted = np.where(x > 0, rounded(x, dtype), -2.5)
    np.testing.assert_array_equal(get(backend, got, dtype), wanted)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("slice", (0, 1, 4)),
        ("slice", (0, -1, 2)),
        ("slice", (0, 2, 1)),
        ("slice", (2, 0, 1)),
        ("pad", (0, -1, 0)),
        ("pad", (2, 0, 0)),
        ("layer_norm", (3, None, None, 1e-5)),
        ("layer_norm", (0, None, None, 1e-5)),
    ],
)
def test_parts_that_are_not_there_are_refused(
    backend: Backend, name: str, settings: tuple[object, ...]
) -> None:
    with pytest.raises(ProgramError):
        call(backend, name, [numbers(3, 4)], *settings)


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "softmax", "clone", "tanh", "sigmoid"])
def test_nan_goes_through(backend: Backend, name: str) -> None:
    x = numbers(2, 3)
    x[1, 1] = np.nan
    settings = (-1,) if name == "softmax" else ()
    (got,) = call(backend, name, [x], *settings, dtype=DType.BF16)
    assert np.isnan(got[1, 1])
    assert not np.isnan(got[0]).any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_cast_rounds_and_keeps_nan_and_infinity(backend: Backend, dtype: DType) -> None:
    x = np.array([[1 / 3, np.nan, np.inf, -np.inf, 1e6]], dtype=np.float32)
    array = put(backend, x, DType.F32)
    (got,) = backend.run(Program(1, (Op("cast", (Ref(0), dtype.value)),), (1,)), [array])
    assert backend.n_bytes(got) == 5 * STORAGE[dtype].itemsize
    np.testing.assert_array_equal(get(backend, got, dtype), decode(encode(x, dtype)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("block", [Region(0, 6, 0, 11), Region(2, 5, 3, 9), Region(4, 6, 0, 11)])
def test_dropout_of_a_block_is_that_of_its_place(
    backend: Backend, dtype: DType, block: Region
) -> None:
    x = numbers(block.n_rows, block.n_cols)
    kept = keep_block(np, block, 11, seed=77, dropout=0.5)
    (got,) = call(backend, "dropout", [x], 0.5, 77, block.row0, block.col0, 11, dtype=dtype)
    # Twice a number is exact in every type.
    np.testing.assert_array_equal(got, rounded(x, dtype) * kept * 2)


def test_dropout_of_everything_is_zero(backend: Backend) -> None:
    (got,) = call(backend, "dropout", [numbers(3, 4)], 1.0, 5, 0, 0, 4)
    assert (got == 0).all()


def test_a_chain_of_ops_agrees_between_backends() -> None:
    program = Program(
        2,
        (
            Op("mm", (Ref(0), Ref(1))),
            Op("gelu", (Ref(2),)),
            Op("t", (Ref(3),)),
            Op("mm", (Ref(1), Ref(3))),
            Op("sum", (Ref(5), (0,), True)),
        ),
        (4, 6),
    )
    results: list[Sequence[Elements]] = []
    for backend in BACKENDS.values():
        inputs = [put(backend, numbers(4, 4, seed=s), DType.F32) for s in (0, 1)]
        results.append([get(backend, x, DType.F32) for x in backend.run(program, inputs)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
