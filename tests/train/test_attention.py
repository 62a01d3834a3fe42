"""Attention of hand-written models goes out and gives what torch gives."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.train.local_runtime import LocalRuntime
from torch import nn
from torch.nn import functional

from cleave.errors import OffloadError
from cleave.train.offload import offload


class Attend(nn.Module):
    """Calls torch's function with fixed options."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, **self.options)


@pytest.fixture(scope="module")
def shared() -> Any:
    runtime = LocalRuntime()
    yield runtime
    runtime.close()


def qkv(
    batch: int = 2, heads: int = 4, length: int = 6, features: int = 3, kv_heads: int | None = None
) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)

    def one(n_heads: int) -> torch.Tensor:
        x = torch.randn(batch, length, n_heads, features, generator=generator)
        return x.transpose(1, 2).requires_grad_()  # not contiguous, as from a projection

    return one(heads), one(kv_heads or heads), one(kv_heads or heads)


def results(
    model: nn.Module, tensors: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    out = model(*leaves)
    slope = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return out.detach(), list(torch.autograd.grad(out, leaves, slope))


def assert_same(fleet: LocalRuntime, tensors: tuple[torch.Tensor, ...], **options: Any) -> None:
    """Out and back on the fleet equal torch's own, to fp32 rounding."""
    n_before = len(fleet.submitted)
    out, grads = results(offload(Attend(**options), fleet, "devices"), tensors)
    assert [w.name for w in fleet.submitted[n_before:]] == ["attention", "attention_backward"]
    expected, expected_grads = results(Attend(**options), tensors)
    for mine, theirs in zip([out, *grads], [expected, *expected_grads], strict=True):
        assert mine.dtype is theirs.dtype
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@given(
    batch=st.integers(1, 5),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    length=st.sampled_from([1, 2, 7, 13]),
    features=st.integers(1, 5),
    causal=st.booleans(),
)
def test_any_shape_gives_what_torch_gives(
    shared: LocalRuntime,
    batch: int,
    kv_heads: int,
    group: int,
    length: int,
    features: int,
    causal: bool,
) -> None:
    tensors = qkv(batch, kv_heads * group, length, features, kv_heads)
    assert_same(shared, tensors, is_causal=causal, enable_gqa=True)


def test_scale_and_another_value_size_count(fleet: LocalRuntime) -> None:
    q, k, _ = qkv()
    v = torch.randn(2, 4, 6, 5)
    assert_same(fleet, (q, k, v), scale=0.7)


def test_fp64_stays_fp64(fleet: LocalRuntime) -> None:
    tensors = tuple(tensor.detach().double() for tensor in qkv())
    out, _ = results(offload(Attend(is_causal=True), fleet, "devices"), tensors)
    expected, _ = results(Attend(is_causal=True), tensors)
    assert torch.allclose(out, expected, rtol=1e-12, atol=1e-12)


def test_a_mask_over_keys_goes_out(fleet: LocalRuntime) -> None:
    mask = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    mask[1, ..., 4:] = False
    assert_same(fleet, qkv(), attn_mask=mask)


def test_a_row_that_sees_nothing_gives_zero_and_zero_gradient(fleet: LocalRuntime) -> None:
    mask = torch.zeros(2, 1, 1, 6, dtype=torch.bool)
    mask[1] = True
    out, grads = results(offload(Attend(attn_mask=mask), fleet, "devices"), qkv())
    for tensor in (out, *grads):
        assert (tensor[0] == 0).all()
        assert (tensor[1] != 0).any()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"attn_mask": torch.ones(6, 6, dtype=torch.bool).tril()}, "mask of shape (6, 6)"),
        ({"attn_mask": torch.zeros(1, 1, 1, 6)}, "mask of shape (1, 1, 1, 6)"),
    ],
)
def test_other_masks_stay_here_and_are_named_once(
    options: Any, reason: str, fleet: LocalRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    model = offload(Attend(**options), fleet, "devices")
    for _ in range(2):
        out, _ = results(model, qkv())
    expected, _ = results(Attend(**options), qkv())
    assert torch.equal(out, expected)
    assert not fleet.submitted
    assert caplog.text.count(reason) == 1


def test_causal_with_fewer_queries_than_keys_is_left_to_torch(fleet: LocalRuntime) -> None:
    q, k, v = qkv()
    out, _ = results(offload(Attend(is_causal=True), fleet, "devices"), (q[:, :, :2], k, v))
    expected, _ = results(Attend(is_causal=True), (q[:, :, :2], k, v))
    assert torch.equal(out, expected)
    assert not fleet.submitted


def test_dropout_is_decided_by_the_seed_not_by_the_tiling() -> None:
    outs = []
    for n_devices in (1, 3):
        fleet = LocalRuntime(n_devices=n_devices)
        torch.manual_seed(3)
        out, grads = results(offload(Attend(dropout_p=0.4), fleet, "devices"), qkv())
        fleet.close()
        outs.append([out, *grads])
    for a, b in zip(*outs, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_dropout_drops_a_fraction_and_keeps_the_mean(fleet: LocalRuntime) -> None:
    q = torch.zeros(8, 4, 32, 1)  # equal scores: each of 32 weights is 1/32
    v = torch.ones(8, 4, 32, 1)
    out, _ = results(offload(Attend(dropout_p=0.25), fleet, "devices"), (q, q, v))
    n_weights = out.numel() * 32
    sigma = math.sqrt(0.25 / 0.75 / n_weights)  # of the mean of kept weights / 0.75
    assert abs(float(out.mean()) - 1) < 5 * sigma
    assert out.unique().numel() > 4


def test_two_calls_drop_different_weights(fleet: LocalRuntime) -> None:
    model = offload(Attend(dropout_p=0.4), fleet, "devices")
    assert not torch.equal(model(*qkv()), model(*qkv()))


def test_backward_sends_only_what_is_new(fleet: LocalRuntime) -> None:
    model = offload(Attend(), fleet, "devices")
    out = model(*qkv())
    before = fleet.bytes_down
    out.sum().backward()
    forward, backward = fleet.submitted
    assert forward.layout == backward.layout
    # dOut, Out and the log-sum-exp of 2 x 4 x 6 positions; Q, K and V are there.
    assert fleet.bytes_down - before == 4 * (2 * 2 * 4 * 6 * 3 + 2 * 4 * 6)


def test_gradients_of_gradients_are_refused(fleet: LocalRuntime) -> None:
    q, k, v = qkv()
    out = offload(Attend(), fleet, "devices")(q, k, v)
    with pytest.raises(OffloadError, match="create_graph=True"):
        torch.autograd.grad(out.sum(), q, create_graph=True)


def test_nothing_is_kept_of_a_pass_without_backward(fleet: LocalRuntime) -> None:
    model = offload(Attend(is_causal=True), fleet, "devices")
    for _ in range(3):
        model(*qkv())
        with torch.no_grad():
            model(*qkv())
    assert len(fleet) == 0


def test_outside_of_an_offloaded_model_torch_is_left_alone(fleet: LocalRuntime) -> None:
    offload(Attend(), fleet, "devices")
    Attend()(*qkv())
    assert not fleet.submitted
