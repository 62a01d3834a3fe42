"""A weight is sent anew when it has changed, and only then."""

import copy
from typing import Any

import pytest
import torch
from tests.train.local_runtime import LocalRuntime
from torch import nn

from cleave.train.offload import invalidate, offload

X = torch.ones(2, 8)


def offloaded(fleet: LocalRuntime) -> Any:
    torch.manual_seed(0)
    return offload(nn.Sequential(nn.Linear(8, 8, bias=False)), fleet, "devices")


def is_right(model: Any) -> bool:
    with torch.no_grad():
        return torch.allclose(model(X), X @ model[0].weight.t(), atol=1e-6)


def adopted_weights(fleet: LocalRuntime) -> list[int]:
    """Numbers of the weights that are adopted now: they are square."""
    return [m.tensor_id for m in fleet._tensors if (m.n_rows, m.n_cols) == (8, 8)]


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_every_optimizer_step_is_a_new_version(
    optimizer: Any, options: dict[str, bool], fleet: LocalRuntime
) -> None:
    model = offloaded(fleet)
    steps = optimizer(model.parameters(), lr=0.1, **options)
    for _ in range(3):
        model(X).sum().backward()
        steps.step()
        assert is_right(model)


def test_a_weight_that_no_optimizer_changes_is_sent_once(fleet: LocalRuntime) -> None:
    model = offload(nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 1)), fleet, "devices")
    frozen = model[0].weight.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p is not frozen])
    adopted = set()
    for _ in range(3):
        model(X).sum().backward()
        optimizer.step()
        adopted.update(adopted_weights(fleet))
    assert len(adopted) == 1


def test_forward_and_backward_share_a_version(fleet: LocalRuntime) -> None:
    model = offloaded(fleet)
    before = model(X.clone().requires_grad_()).sum()
    first = adopted_weights(fleet)
    before.backward()
    assert adopted_weights(fleet) == first


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.data.add_(1),
        lambda p: p.data.copy_(torch.ones(8, 8)),
        lambda p: p.detach().mul_(2),
        lambda p: setattr(p, "data", torch.ones(8, 8)),
        lambda p: torch.from_numpy(p.detach().numpy()).add_(1),
        lambda p: nn.init.zeros_(p),
    ],
)
def test_a_change_of_the_whole_is_seen_at_once(change: Any, fleet: LocalRuntime) -> None:
    model = offloaded(fleet)
    assert is_right(model)
    change(model[0].weight)
    assert is_right(model)


def test_a_change_that_torch_does_not_count_is_seen_at_once(fleet: LocalRuntime) -> None:
    model = offloaded(fleet)
    assert is_right(model)
    model[0].weight.data[3, 5] += 1
    assert is_right(model)
    model[0].weight.data[2].zero_()
    assert is_right(model)
    model[0].weight.detach().numpy()[4] *= 3
    assert is_right(model)


def test_invalidate_makes_a_new_version(fleet: LocalRuntime) -> None:
    model = offloaded(fleet)
    assert is_right(model)
    first = adopted_weights(fleet)
    invalidate(model)
    assert adopted_weights(fleet) == []
    assert is_right(model)
    assert adopted_weights(fleet) != first


def test_loading_a_state_dict_is_a_new_version(fleet: LocalRuntime) -> None:
    model = offloaded(fleet)
    other = {name: value + 1 for name, value in model.state_dict().items()}
    assert is_right(model)
    model.load_state_dict(other)
    assert is_right(model)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    assert is_right(model)


def test_the_versions_of_a_model_that_is_gone_are_released(fleet: LocalRuntime) -> None:
    model = offloaded(fleet)
    assert is_right(model)
    del model
    assert len(fleet) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (8, 8), (65, 3)])
def test_odd_sizes_and_strides_have_fingerprints_too(
    shape: tuple[int, int], dtype: torch.dtype, fleet: LocalRuntime
) -> None:
    layer = nn.Linear(shape[1], shape[0], bias=False, dtype=dtype)
    buffer = torch.randn(shape[0] * shape[1] + 1).to(dtype)
    layer.weight.data = buffer[1:].view(shape[1], shape[0]).t()  # misaligned and transposed
    model = offload(nn.Sequential(layer), fleet, "devices")
    x = torch.ones(2, shape[1], dtype=dtype)
    with torch.no_grad():
        for _ in range(3):
            assert torch.allclose(model(x), x @ layer.weight.t(), rtol=2e-2, atol=2e-2)
        layer.weight.data *= 2
        assert torch.allclose(model(x), x @ layer.weight.t(), rtol=2e-2, atol=2e-2)
