"""Attention and its gradient against torch's own, and against itself cut otherwise."""

import math
import tracemalloc
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.compute.conftest import BACKENDS
from tests.compute.run import call

from cleave.compute import numpy_ops, torch_attention
from cleave.compute.backend import Backend
from cleave.compute.elements import Elements, decode, encode
from cleave.core.matrix import DType
from cleave.core.operations import AttentionShape
from cleave.errors import ProgramError

# Error allowed, relative to the largest element: a few roundings of the type.
TOLERANCE = {DType.F64: 1e-12, DType.F32: 1e-5, DType.BF16: 2e-2, DType.F16: 3e-3}
PAIR = (DType.F64, DType.F64)


@dataclass(frozen=True)
class Shape:
    """An attention; sizes are small and odd unless a test says otherwise."""

    batch: int = 2
    heads: int = 2
    group: int = 1
    q_len: int = 7
    kv_len: int = 7
    head_dim: int = 5
    value_dim: int = 5
    causal: bool = False
    window: int = 0
    dropout: float = 0.0
    seed: int = 99
    mask: str = ""
    dtype: DType = DType.F64

    def operands(self) -> list[Elements]:
        """Queries, keys, values and the gradient of the output, rounded to the type."""
        rng = np.random.default_rng(3)
        queries = (self.batch, self.heads * self.group, self.q_len)
        keys = (self.batch, self.heads, self.kv_len)
        sizes = (
            (*queries, self.head_dim),
            (*keys, self.head_dim),
            (*keys, self.value_dim),
            (*queries, self.value_dim),
        )
        return [decode(encode(rng.standard_normal(size), self.dtype)) for size in sizes]

    def seen(self) -> Elements | None:
        """The padding mask; one sequence is padded, `all` pads one wholly."""
        if not self.mask:
            return None
        seen = np.ones((self.batch, self.kv_len), dtype=np.bool_)
        half = self.kv_len // 2
        seen[
            0, {"left": slice(0, half), "right": slice(half, None), "all": slice(None)}[self.mask]
        ] = False
        return seen

    def settings(self) -> tuple[object, ...]:
        """The op's trailing arguments."""
        n_heads = self.heads * self.group
        return (self.causal, 0.4, self.window, self.dropout, self.seed, 0, 0, n_heads)


def ours(backend: Backend, shape: Shape) -> list[Elements]:
    """Output, log-sum-exp and the three gradients."""
    q, k, v, d_out = shape.operands()
    mask, settings, dtype = shape.seen(), shape.settings(), shape.dtype
    wide = DType.F64 if dtype is DType.F64 else DType.F32
    out, lse = call(
        backend, "attention", [q, k, v, mask], *settings, dtype=dtype, results=(dtype, wide)
    )
    grads = call(
        backend,
        "attention_backward",
        [d_out, q, k, v, out, (lse, wide), mask],
        *settings,
        dtype=dtype,
        results=(dtype,) * 3,
    )
    return [out, lse, *grads]


def torchs(shape: Shape, kept: torch.Tensor | None = None) -> list[Elements]:
    """The same in fp64 by autograd; rows that see no key are 0 and have no gradient."""
    q, k, v, d_out = (torch.from_numpy(x).double().requires_grad_() for x in shape.operands())
    own = torch.arange(shape.q_len)[:, None] + shape.kv_len - shape.q_len
    keys = torch.arange(shape.kv_len)
    visible = torch.ones(shape.batch, 1, shape.q_len, shape.kv_len, dtype=torch.bool)
    if shape.causal:
        visible &= keys <= own
    if shape.window:
        visible &= keys > own - shape.window
    seen = shape.seen()
    if seen is not None:
        visible &= torch.from_numpy(seen)[:, None, None]
    rows = visible.any(-1, keepdim=True)
    if kept is None:
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, visible | ~rows, scale=0.4, enable_gqa=True
        )
    else:
        scores = q @ k.repeat_interleave(shape.group, 1).mT * 0.4
        weights = scores.masked_fill(~(visible | ~rows), -math.inf).softmax(-1)
        factor = 1 / (1 - shape.dropout)
        out = (weights * kept * factor) @ v.repeat_interleave(shape.group, 1)
    out = out.masked_fill(~rows, 0)
    grads = torch.autograd.grad(out, (q, k, v), d_out)
    return [x.detach().numpy() for x in (out, *grads)]


def assert_close(got: Elements, wanted: Elements, dtype: DType) -> None:
    size = max(0.05, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * size)


SHAPES = [
    Shape(),
    Shape(causal=True),
    Shape(group=3, causal=True),
    Shape(group=2, mask="left", causal=True),
    Shape(mask="right"),
    Shape(mask="left", causal=True),
    Shape(mask="all"),
    Shape(mask="all", causal=True, group=2),
    Shape(q_len=3, kv_len=11, causal=True),
    Shape(q_len=3, kv_len=11, mask="right", group=2),
    Shape(q_len=11, kv_len=3, causal=True),
    Shape(value_dim=4, head_dim=6),
    Shape(window=3, causal=True),
    Shape(window=2, causal=True, group=2, mask="left", q_len=5, kv_len=9),
    Shape(window=3),
    Shape(q_len=1, kv_len=1, heads=1, batch=1),
    Shape(q_len=130, kv_len=130, causal=True, heads=1, head_dim=16, value_dim=16),
    Shape(q_len=600, kv_len=1100, mask="left", heads=1, head_dim=8, value_dim=8),
]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_and_gradients_are_those_of_torch(
    backend: Backend, shape: Shape, dtype: DType
) -> None:
    shape = replace(shape, dtype=dtype)
    out, _, *grads = ours(backend, shape)
    for got, wanted in zip((out, *grads), torchs(shape), strict=True):
        assert got.shape == wanted.shape
        assert_close(got, wanted, dtype)


@pytest.mark.parametrize("causal", [False, True])
def test_log_sum_exp_is_minus_infinity_where_no_key_is_seen(backend: Backend, causal: bool) -> None:
    out, lse, *grads = ours(backend, Shape(mask="left", causal=causal, group=2))
    # Three of seven keys of the first sequence are padding; causally its first queries see nothing.
    blind = np.zeros((2, 4, 7), dtype=np.bool_)
    blind[0, :, :3] = causal
    np.testing.assert_array_equal(lse == -np.inf, blind)
    assert (out[blind] == 0).all()
    assert (grads[0][blind] == 0).all()
    assert all(np.isfinite(x).all() for x in (out, *grads))


def test_log_sum_exp_is_that_of_the_scores(backend: Backend) -> None:
    shape = Shape(group=2)
    q, k, _, _ = shape.operands()
    scores = q @ np.repeat(k, 2, axis=1).swapaxes(-1, -2) * 0.4
    np.testing.assert_allclose(ours(backend, shape)[1], np.log(np.exp(scores).sum(-1)), rtol=1e-12)


DROPPED = [
    Shape(dropout=0.3),
    Shape(dropout=0.3, causal=True, group=3),
    Shape(dropout=0.1, causal=True, window=4, mask="left", q_len=5, kv_len=9),
    Shape(dropout=0.5, q_len=64, kv_len=64, heads=1),
]


@pytest.mark.parametrize("shape", DROPPED, ids=str)
def test_dropout_is_equal_on_both_backends_and_right(shape: Shape) -> None:
    heads = shape.heads * shape.group
    ones = np.ones((shape.batch * heads * shape.q_len, shape.kv_len))
    (kept,) = call(
        BACKENDS["numpy"], "dropout", [ones], shape.dropout, shape.seed, 0, 0, shape.kv_len
    )
    kept = (kept > 0).reshape(shape.batch, heads, shape.q_len, shape.kv_len)
    wanted = torchs(shape, torch.from_numpy(kept))
    for backend in BACKENDS.values():
        out, _, *grads = ours(backend, shape)
        for got, exact in zip((out, *grads), wanted, strict=True):
            assert_close(got, exact, DType.F64)


def test_dropout_of_a_tile_is_that_of_the_whole(backend: Backend) -> None:
    shape = Shape(batch=3, heads=3, group=2, dropout=0.4, causal=True)
    q, k, v, d_out = shape.operands()
    out, lse, *grads = ours(backend, shape)
    # The tile: sequences 1 and 2, KV heads 2 and 3, so query heads 3 to 6.
    settings = (*shape.settings()[:5], 1, 2, 6)
    sequences, query_heads, kv_heads = slice(1, 3), slice(2, 6), slice(1, 3)
    tile = [q[sequences, query_heads], k[sequences, kv_heads], v[sequences, kv_heads]]
    mine = call(backend, "attention", [*tile, None], *settings, dtype=DType.F64, results=PAIR)
    np.testing.assert_allclose(mine[0], out[sequences, query_heads], rtol=1e-12)
    saved = [x[sequences, query_heads] for x in (out, lse)]
    mine = call(
        backend,
        "attention_backward",
        [d_out[sequences, query_heads], *tile, *saved, None],
        *settings,
        dtype=DType.F64,
        results=(DType.F64,) * 3,
    )
    assert_close(mine[0], grads[0][sequences, query_heads], DType.F64)
    assert_close(mine[1], grads[1][sequences, kv_heads], DType.F64)
    assert_close(mine[2], grads[2][sequences, kv_heads], DType.F64)


@given(
    shape=st.builds(
        Shape,
        batch=st.integers(1, 2),
        heads=st.integers(1, 3),
        group=st.integers(1, 3),
        q_len=st.integers(1, 9),
        kv_len=st.integers(1, 9),
        head_dim=st.integers(1, 6),
        value_dim=st.integers(1, 6),
        causal=st.booleans(),
        window=st.integers(0, 4),
        mask=st.sampled_from(["", "left", "right", "all"]),
    )
)
def test_attention_of_any_shape_is_that_of_torch(shape: Shape) -> None:
    wanted = torchs(shape)
    for backend in BACKENDS.values():
        out, _, *grads = ours(backend, shape)
        for got, exact in zip((out, *grads), wanted, strict=True):
            np.testing.assert_allclose(got, exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("max_scores", [1, 20, 100, 10**9])
def test_the_size_of_tiles_does_not_matter(
    backend: Backend, max_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(group=2, dropout=0.3, causal=True, window=4, mask="left", q_len=6, kv_len=9)
    whole = ours(backend, shape)
    monkeypatch.setattr(numpy_ops, "_MAX_SCORES", max_scores)
    monkeypatch.setattr(torch_attention, "_MAX_SCORES_CPU", max_scores)
    for part, all_at_once in zip(ours(backend, shape), whole, strict=True):
        np.testing.assert_allclose(part, all_at_once, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 700, 700), (4, 3, 2, 100, 130), (1, 1, 1, 64, 3000), (1, 2, 4, 300, 300)]
)
def test_memory_stays_within_what_is_declared(
    sizes: tuple[int, int, int, int, int], dtype: DType
) -> None:
    batch, heads, group, q_len, kv_len = sizes
    shape = AttentionShape(
        batch=batch,
        kv_heads=heads,
        group=group,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=16,
        value_dim=16,
        causal=True,
        scale=0.4,
        dropout=0.1,
    )
    queries, keys = (batch, heads * group, q_len), (batch, heads, kv_len)
    q, k, v, d_out, out = (
        encode(np.ones((*size, 16)), dtype) for size in (queries, keys, keys, queries, queries)
    )
    settings = (True, 0.4, 0, 0.1, 1, 0, 0, heads * group)
    lse = np.zeros(queries, dtype=np.float32)
    tracemalloc.start()
    numpy_ops.FUNCTIONS["attention"](q, k, v, None, *settings)
    numpy_ops.FUNCTIONS["attention_backward"](d_out, q, k, v, out, lse, None, *settings)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A chunk of the mask generator's 64-bit numbers comes on top, however small the task.
    assert peak_bytes <= shape.workspace_bytes * batch * heads + (3 << 20)


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(
    "shape", [Shape(causal=True, q_len=40, kv_len=40), Shape(window=4)], ids=str
)
def test_nan_comes_out_as_nan(backend: Backend, shape: Shape, place: int) -> None:
    class Broken(Shape):
        def operands(self) -> list[Elements]:
            operands = super().operands()
            operands[place][0, 0, 0] = np.nan
            return operands

    out, _, dq, dk, dv = ours(backend, Broken(**vars(shape)))
    results = (dq, dk, dv) if place == 3 else (out, dq, dk, dv)
    assert np.isnan(dq[0, 0, 0]).any()
    assert all(np.isnan(x[0]).any() for x in results if place < 2 or x is not dv)
    assert not any(np.isnan(x[1]).any() for x in (out, dq, dk, dv))


def test_nothing_in_is_nothing_out(backend: Backend) -> None:
    for shape in (Shape(batch=0), Shape(q_len=0), Shape(kv_len=0), Shape(kv_len=0, causal=True)):
        out, lse, dq, dk, dv = ours(backend, shape)
        assert out.shape == (shape.batch, 2, shape.q_len, 5)
        assert (lse == -np.inf).all()
        assert not any(x.any() for x in (out, dq, dk, dv))


def test_operands_that_do_not_fit_are_refused(backend: Backend) -> None:
    q, k, v, _ = Shape(group=2).operands()
    settings = Shape(group=2).settings()
    for tensors in ([q[:, :3], k, v, None], [q, k, v[:, :, :5], None], [q[0], k[0], v[0], None]):
        with pytest.raises(ProgramError, match=r"attention\): q .* expected q \(batch"):
            call(backend, "attention", tensors, *settings, results=PAIR)
    with pytest.raises(ProgramError, match="mask"):
        call(backend, "attention", [q, k, v, np.ones((2, 3), bool)], *settings, results=PAIR)
