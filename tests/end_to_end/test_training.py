"""Training on real, unequal agents: the same as on one machine, every operation accounted."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import pytest
import torch
from tests.end_to_end.waiting import until
from tests.train.models import MODELS, batches, loss_of
from tests.train.parity import (
    MakeOptimizer,
    adamw,
    assert_narrow_parity,
    assert_parity,
    fused_adamw,
    train,
)
from torch import nn

from cleave.server.fleet import Fleet
from cleave.server.local import AgentOptions, LocalFleet, local_fleet
from cleave.train.flops import host_flops
from cleave.train.offload import offload

pytestmark = pytest.mark.timeout(120)

UNEQUAL = (
    AgentOptions(name="quick", backend="torch", threads=2),
    AgentOptions(name="plain", backend="numpy"),
    AgentOptions(name="far", backend="numpy", limit_down="200Mbit/s", limit_up="50Mbit/s"),
    AgentOptions(name="small", backend="numpy", memory="4.2MB"),
)


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with local_fleet(agents=UNEQUAL) as fleet:
        yield fleet


@pytest.mark.parametrize("make_optimizer", [adamw, fused_adamw])
@pytest.mark.parametrize("name", MODELS)
def test_three_steps_on_unequal_agents_are_those_of_one_machine(
    name: str, make_optimizer: MakeOptimizer, fleet: LocalFleet
) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    local = train(copy.deepcopy(model), list(batches(3)), loss_of, make_optimizer)
    run = train(offload(model, fleet, "devices"), list(batches(3)), loss_of, make_optimizer)
    assert_parity(run, local)


@pytest.mark.parametrize("name", MODELS)
def test_under_bf16_autocast_the_error_is_that_of_one_machine(name: str, fleet: LocalFleet) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    offloaded = offload(copy.deepcopy(model), fleet, "devices")
    assert_narrow_parity(model, offloaded, list(batches(3)), loss_of)


def test_tied_weights_stay_tied_while_they_learn(fleet: LocalFleet) -> None:
    torch.manual_seed(0)
    model = offload(MODELS["gpt2"](), fleet, "devices")
    embedding = model.get_parameter("transformer.wte.weight")
    before = embedding.detach().clone()
    train(model, list(batches(1)), loss_of)
    assert model.get_parameter("lm_head.weight") is embedding
    assert not torch.equal(before, embedding)


def test_dropout_is_the_same_on_agents_and_on_the_host(fleet: LocalFleet) -> None:
    torch.manual_seed(0)
    model = MODELS["gpt"](dropout=0.2)
    with Fleet("127.0.0.1") as nobody:
        torch.manual_seed(1)
        alone = train(offload(copy.deepcopy(model), nobody, "devices"), list(batches(2)), loss_of)
    torch.manual_seed(1)
    run = train(offload(model, fleet, "devices"), list(batches(2)), loss_of)
    assert_parity(run, alone)


def test_a_nan_in_the_model_comes_out_as_nan(fleet: LocalFleet) -> None:
    torch.manual_seed(0)
    model = MODELS["gpt"]()
    with torch.no_grad():
        next(iter(model.parameters()))[0] = math.nan
    run = train(offload(model, fleet, "devices"), list(batches(1)), loss_of)
    assert math.isnan(run.losses[0])


@pytest.mark.parametrize("name", MODELS)
def test_devices_do_nearly_all_flops_and_the_account_adds_up(name: str, fleet: LocalFleet) -> None:
    local = MODELS[name]()
    model = offload(copy.deepcopy(local), fleet, "devices")
    total = host_flops(lambda: step(local))
    before = fleet.stats()
    on_host = host_flops(lambda: step(model))
    after = fleet.stats()
    on_devices = after.device_flops - before.device_flops
    stepped_in = after.host_flops - before.host_flops
    assert on_host + on_devices + stepped_in == pytest.approx(total, rel=1e-3)
    assert on_devices >= 0.99 * total


def test_the_account_adds_up_when_a_device_dies_in_mid_step() -> None:
    torch.manual_seed(0)
    local = wide()
    total = host_flops(lambda: step(local))
    agents = [
        AgentOptions(name="lasting", backend="numpy"),
        AgentOptions(name="dying", backend="numpy", limit_up="40Mbit/s"),
    ]
    with local_fleet(agents=agents) as fleet:
        model = offload(copy.deepcopy(local), fleet, "devices")
        dying = fleet.agents[1]
        before = fleet.stats()
        was_killed: list[bool] = []

        def kill_in_mid_step(*_: object) -> None:
            if not was_killed:
                was_killed.append(True)
                dying.kill()
                until(lambda: fleet.n_devices == 1)

        layers = model.get_submodule("layers")
        layers.get_submodule("1").register_full_backward_pre_hook(kill_in_mid_step)
        on_host = host_flops(lambda: step(model))
        after = fleet.stats()
    assert was_killed
    on_devices = after.device_flops - before.device_flops
    stepped_in = after.host_flops - before.host_flops
    assert on_host + on_devices + stepped_in == pytest.approx(total, rel=1e-3)
    for (name, expected), (_, parameter) in zip(
        local.named_parameters(), model.named_parameters(), strict=True
    ):
        assert parameter.grad is not None, name
        assert expected.grad is not None, name
        assert torch.allclose(parameter.grad, expected.grad, rtol=1e-3, atol=1e-6), name


def test_forward_and_backward_move_what_the_plan_says_and_no_operand_twice() -> None:
    torch.manual_seed(0)
    rows, ins, outs = 512, 1024, 768
    with local_fleet(1, backend="numpy") as fleet:
        layer = offload(nn.Sequential(nn.Linear(ins, outs, bias=False)), fleet, "devices")
        x = torch.randn(rows, ins, requires_grad=True)
        before = fleet.stats()
        layer(x).square().mean().backward()
        after = fleet.stats()
    # One device: X, W and dY go down once, Y, dX and dW come up once.
    down, up = rows * ins + ins * outs + rows * outs, rows * outs + rows * ins + ins * outs
    assert after.planned_bytes - before.planned_bytes == 4 * (down + up)
    assert after.bytes_down - before.bytes_down == pytest.approx(4 * down, rel=0.02)
    assert after.bytes_up - before.bytes_up == pytest.approx(4 * up, rel=0.02)


def test_a_weight_that_did_not_change_is_not_sent_again() -> None:
    torch.manual_seed(0)
    with local_fleet(1, backend="numpy") as fleet, torch.no_grad():
        layer = offload(nn.Sequential(nn.Linear(1024, 1024, bias=False)), fleet, "devices")
        x = torch.randn(16, 1024)
        sent = []
        for _ in range(3):
            before = fleet.stats().bytes_down
            layer(x)
            sent.append(fleet.stats().bytes_down - before)
        next(iter(layer.parameters())).mul_(2.0)
        before = fleet.stats().bytes_down
        layer(x)
        sent.append(fleet.stats().bytes_down - before)
    weight_bytes = 4 * 1024 * 1024
    assert [n > weight_bytes for n in sent] == [True, False, False, True]


def test_nothing_is_held_for_a_model_that_is_gone(fleet: LocalFleet) -> None:
    model = offload(MODELS["gpt"](), fleet, "devices")
    train(model, list(batches(2)), loss_of)
    del model
    until(lambda: fleet.stats().matrices == 0)
    until(lambda: all(device.held_bytes == 0 for device in fleet.devices))


def wide() -> nn.Module:
    """Three layers whose results take a slow uplink a while."""
    torch.manual_seed(0)

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x).relu()
            return x

    return Wide()


def step(model: nn.Module) -> None:
    """One forward and backward pass, always on the same input."""
    if isinstance(model, tuple(type(MODELS[name]()) for name in MODELS)):
        loss_of(model, next(batches(1))).backward()
    else:
        generator = torch.Generator().manual_seed(1)
        model(torch.randn(512, 512, generator=generator)).square().mean().backward()


def test_what_is_cheaper_on_the_host_than_to_send_stays_there(fleet: LocalFleet) -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(16, 16))
    x = torch.randn(4, 16)
    expected = layer(x)
    before = fleet.stats()
    assert torch.equal(offload(layer, fleet, "auto")(x), expected)
    assert fleet.stats().device_tasks == before.device_tasks
