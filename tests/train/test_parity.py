"""Whole models, a few steps: the loss and gradients that one machine would have got."""

import copy

import pytest
import torch
from tests.train.local_runtime import LocalRuntime
from tests.train.models import MODELS, batches, loss_of
from tests.train.parity import (
    MakeOptimizer,
    adamw,
    assert_narrow_parity,
    assert_parity,
    fused_adamw,
    train,
)

from cleave.core.matrix import DType
from cleave.train.offload import offload


@pytest.mark.parametrize("make_optimizer", [adamw, fused_adamw])
@pytest.mark.parametrize("name", MODELS)
def test_three_steps_are_those_of_one_machine(
    name: str, make_optimizer: MakeOptimizer, fleet: LocalRuntime
) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    local = train(copy.deepcopy(model), list(batches(3)), loss_of, make_optimizer)
    offload(model, fleet, "devices")
    run = train(model, list(batches(3)), loss_of, make_optimizer)
    assert_parity(run, local)


@pytest.mark.parametrize("name", MODELS)
def test_under_bf16_autocast_the_error_is_that_of_one_machine(
    name: str, fleet: LocalRuntime
) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    offloaded = offload(copy.deepcopy(model), fleet, "devices")
    assert_narrow_parity(model, offloaded, list(batches(3)), loss_of)


@pytest.mark.parametrize("form", [0, 1, 2])
def test_every_form_of_a_gemm_gives_the_same(form: int) -> None:
    torch.manual_seed(0)
    model = MODELS["gpt"]()
    local = train(copy.deepcopy(model), list(batches(2)), loss_of)
    fleet = LocalRuntime(n_devices=4, form=form)
    run = train(offload(model, fleet, "devices"), list(batches(2)), loss_of)
    fleet.close()
    assert_parity(run, local)


@pytest.mark.parametrize("name", MODELS)
def test_dropout_does_not_depend_on_who_computes_what(name: str) -> None:
    runs = []
    for n_devices in (1, 4):
        fleet = LocalRuntime(n_devices=n_devices)
        torch.manual_seed(0)
        model = offload(MODELS[name](dropout=0.2), fleet, "devices")
        runs.append(train(model, list(batches(2)), loss_of))
        fleet.close()
    assert_parity(runs[0], runs[1])


def test_a_narrow_wire_keeps_fp32_outside() -> None:
    torch.manual_seed(0)
    model = MODELS["gpt"]()
    local = train(copy.deepcopy(model), list(batches(1)), loss_of)
    fleet = LocalRuntime(wire=DType.BF16)
    run = train(offload(model, fleet, "devices"), list(batches(1)), loss_of)
    fleet.close()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    # bf16 has 8 bits: 2 layers of it leave a loss of 3.6 right to about a percent.
    assert run.losses[0] == pytest.approx(local.losses[0], rel=1e-2)
    assert run.losses[0] != local.losses[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_nan_comes_out_as_nan(name: str, fleet: LocalRuntime) -> None:
    model = MODELS[name]()
    next(p for p in model.parameters() if p.dim() == 1).data[0] = torch.nan
    offload(model, fleet, "devices")
    loss = loss_of(model, next(batches(1)))
    loss.backward()
    assert loss.isnan()
    assert any(p.grad is not None and p.grad.isnan().any() for p in model.parameters())
