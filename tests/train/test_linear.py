"""A linear layer done by a fleet gives what torch gives, for every shape, stride and type."""

import copy
import gc
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.train.local_runtime import LocalPending, LocalRuntime
from torch import nn

from cleave.errors import OffloadError, WorkFailedError
from cleave.train.offload import offload

# Per type, the error of a sum of a few hundred products: some units in its last place.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
LEADING = st.sampled_from([(), (1,), (0,), (7,), (2, 3), (2, 0, 3), (1, 1, 5)])
STRIDES = st.sampled_from(["contiguous", "transposed", "sliced", "expanded"])


@pytest.fixture(scope="module")
def shared() -> Any:
    runtime = LocalRuntime()
    yield runtime
    runtime.close()


def with_strides(x: torch.Tensor, strides: str) -> torch.Tensor:
    if strides == "transposed":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if strides == "sliced":
        return torch.stack((x, x), -1)[..., 0]
    if strides == "expanded" and x.dim() > 1:
        return x[:1].expand(x.shape)
    return x


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = a.detach(), b.detach()
    tolerance = TOLERANCE[a.dtype] * max(1.0, float(b.abs().max()) if b.numel() else 0.0)
    return torch.allclose(a, b, rtol=TOLERANCE[a.dtype], atol=tolerance)


@given(
    leading=LEADING,
    ins=st.sampled_from([1, 2, 3, 17, 64]),
    outs=st.sampled_from([1, 5, 13]),
    bias=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCE)),
    strides=STRIDES,
)
def test_it_gives_what_torch_gives(
    shared: LocalRuntime,
    leading: tuple[int, ...],
    ins: int,
    outs: int,
    bias: bool,
    dtype: torch.dtype,
    strides: str,
) -> None:
    torch.manual_seed(0)
    local = nn.Linear(ins, outs, bias=bias, dtype=dtype)
    layer = offload(copy.deepcopy(local), shared, "devices")
    x = with_strides(torch.randn(*leading, ins).to(dtype), strides)
    x0, x1 = x.detach().requires_grad_(), x.detach().requires_grad_()
    y0, y1 = local(x0), layer(x1)
    assert close(y1, y0)
    y_grad = torch.randn(y0.shape).to(dtype)
    y0.backward(y_grad)
    y1.backward(y_grad)
    assert x0.grad is not None
    assert x1.grad is not None
    assert close(x1.grad, x0.grad)
    for mine, theirs in zip(layer.parameters(), local.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert close(mine.grad, theirs.grad)


@pytest.mark.parametrize("name", ["rows", "outs"])
def test_a_layer_without_rows_or_outputs_stays_here(shared: LocalRuntime, name: str) -> None:
    n_before = len(shared.submitted)
    layer = nn.Linear(4, 3)
    if name == "outs":
        layer.weight, layer.bias = nn.Parameter(torch.empty(0, 4)), nn.Parameter(torch.empty(0))
    offload(layer, shared, "devices")
    x = torch.empty(0 if name == "rows" else 2, 4)
    assert layer(x).numel() == 0
    assert len(shared.submitted) == n_before


def test_a_wrong_shape_is_torchs_own_error(fleet: LocalRuntime) -> None:
    layer = offload(nn.Linear(4, 3), fleet, "devices")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        layer(torch.ones(2, 5))


def test_backward_reuses_the_tiles_of_forward(fleet: LocalRuntime) -> None:
    layer = offload(nn.Linear(12, 10), fleet, "devices")
    layer(torch.randn(9, 12, requires_grad=True)).sum().backward()
    forward, *grads = fleet.submitted
    assert [grad.name for grad in grads] == ["input grad", "weight grad"]
    assert all(grad.hinted for grad in grads)
    assert all(len(grad.layout) == len(forward.layout) for grad in grads)
    # 9 x 12 inputs, 10 x 12 weights: each of 3 x 2 tiles is sent its rows of both once, then its
    # part of the output's gradient, which the two gradients share: 9 x 10 in all.
    down = sum((p.tile.n_rows + p.tile.n_cols) * 12 for p in forward.layout) + 9 * 10
    assert fleet.bytes_down == 4 * down


@pytest.mark.parametrize("form", [0, 1, 2])
def test_only_the_gradient_travels_in_backward_whatever_the_form(form: int) -> None:
    fleet = LocalRuntime(n_devices=2, form=form)
    layer = offload(nn.Linear(12, 10), fleet, "devices")
    y = layer(torch.randn(8, 12, requires_grad=True))
    before = fleet.bytes_down
    y.sum().backward()
    fleet.close()
    # Over rows x outs each cell of dY goes to one tile; where only one of the two is cut, to two.
    assert fleet.bytes_down - before <= 2 * 4 * 8 * 10


def test_layers_that_read_the_same_input_share_it(fleet: LocalRuntime) -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.q(x) + self.k(x) + self.v(x)
            return out

    adopted: list[torch.Tensor] = []
    adopt = fleet.adopt
    fleet.adopt = lambda tensor, **k: adopted.append(tensor) or adopt(tensor, **k)  # type: ignore
    offload(Three(), fleet, "devices")(torch.ones(2, 6))
    assert [tuple(tensor.shape) for tensor in adopted].count((2, 6)) == 1


def test_an_input_changed_in_place_is_sent_anew(fleet: LocalRuntime) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 1, bias=False)

        def forward(self, x: torch.Tensor) -> list[float]:
            first = self.a(x)
            x += 1
            return [first.item(), self.a(x).item()]

    model = Twice()
    nn.init.ones_(model.a.weight)
    with torch.no_grad():
        assert offload(model, fleet, "devices")(torch.ones(1, 2)) == [2.0, 4.0]


def test_gradients_of_gradients_are_refused(fleet: LocalRuntime) -> None:
    layer = offload(nn.Linear(2, 2), fleet, "devices")
    y = layer(torch.ones(1, 2, requires_grad=True)).sum()
    with (
        pytest.raises(OffloadError, match=r"create_graph=True.*cleave\.restore"),
        pytest.warns(UserWarning, match="create_graph=True"),
    ):
        y.backward(create_graph=True)


def test_what_is_not_worth_while_stays_here() -> None:
    fleet = LocalRuntime(worthwhile=False)
    layer = offload(nn.Linear(2, 2), fleet)
    layer(torch.ones(1, 2)).sum().backward()
    fleet.close()
    assert layer.weight.grad is not None
    assert not fleet.submitted


def test_an_unsupported_type_stays_here_and_is_named_once(
    fleet: LocalRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    layer = offload(nn.Linear(2, 2), fleet, "devices")
    layer.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
    layer.register_parameter("bias", None)
    for _ in range(2):
        layer(torch.ones(1, 2, dtype=torch.complex64)).abs().sum().backward()
    assert not fleet.submitted
    assert caplog.text.count("torch.complex64 weights") == 1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_kept(mode: Any, fleet: LocalRuntime) -> None:
    layer = offload(nn.Linear(3, 2), fleet, "devices")
    with mode():
        y = layer(torch.ones(4, 3))
    assert not y.requires_grad
    assert len(fleet) == 1  # the weight


def test_nothing_piles_up_over_many_steps(fleet: LocalRuntime) -> None:
    model = offload(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), fleet, "devices")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(50):
        loss = model(torch.randn(4, 3)).sum()
        if step % 5:
            loss.backward()
            optimizer.step()
        if step % 7 == 0:
            fleet.fails_on = "input grad"
            with pytest.raises(WorkFailedError):
                model(torch.randn(4, 3)).sum().backward()
            fleet.fails_on = None
    del loss
    gc.collect()  # tracebacks are cycles
    model(torch.randn(4, 3))
    assert len(fleet) == 2  # the weights


def test_an_interrupted_wait_keeps_what_the_work_reads_until_it_has_ended(
    fleet: LocalRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = offload(nn.Sequential(nn.Linear(3, 2)), fleet, "devices")

    def interrupt(_pending: LocalPending) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalPending, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(4, 3))
    gc.collect()
    assert len(fleet) == 3  # X, W, Y
    with torch.no_grad():
        model(torch.ones(4, 3))
    assert len(fleet) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of forward mode
def test_function_transforms_and_tracing_are_left_to_torch(fleet: LocalRuntime) -> None:
    layer = offload(nn.Linear(3, 2), fleet, "devices")
    x = torch.randn(5, 3)
    outs = [torch.func.vmap(layer)(x), torch.func.jvp(layer, (x,), (x,))[0]]
    with torch.autograd.forward_ad.dual_level():
        outs.append(layer(torch.autograd.forward_ad.make_dual(x, x)))
    outs.append(torch.jit.trace(layer, x, check_trace=False)(x))
    assert not fleet.submitted
    for out in outs:
        assert torch.allclose(out, layer(x), atol=1e-6)


def test_autocast_sends_the_narrow_type_and_casts_a_weight_once(fleet: LocalRuntime) -> None:
    layer = offload(nn.Linear(3, 2), fleet, "devices")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(torch.ones(4, 3)) + layer(torch.ones(4, 3))
    assert y.dtype is torch.bfloat16
    y.float().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype is torch.float32
    assert fleet.bytes_down % 2 == 0
    del y
    assert [m.dtype.value for m in fleet._tensors] == ["bfloat16"]
