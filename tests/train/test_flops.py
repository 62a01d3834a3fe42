"""The account of flops adds up: host and devices together do what one machine would have done."""

import copy

import pytest
import torch
from tests.train.local_runtime import LocalRuntime
from tests.train.models import MODELS, batches, loss_of

from cleave.train.flops import host_flops
from cleave.train.offload import offload


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_host_and_device_flops_add_up_to_a_local_step(
    name: str, autocast: bool, fleet: LocalRuntime
) -> None:
    local = MODELS[name]()
    model = offload(copy.deepcopy(local), fleet, "devices")
    tokens = next(batches(1))

    def step(each: torch.nn.Module) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = loss_of(each, tokens)
        loss.backward()

    total = host_flops(lambda: step(local))
    on_host = host_flops(lambda: step(model))
    assert total > 0
    assert on_host + fleet.flops == pytest.approx(total, rel=1e-3)
    assert fleet.flops >= 0.99 * total


def test_what_stays_here_counts_as_the_hosts() -> None:
    fleet = LocalRuntime(worthwhile=False)
    local = MODELS["gpt"]()
    model = offload(copy.deepcopy(local), fleet)
    tokens = next(batches(1))
    total = host_flops(lambda: loss_of(local, tokens).backward())
    assert host_flops(lambda: loss_of(model, tokens).backward()) == total
    fleet.close()


def test_attention_counts_two_products_forward_and_five_back() -> None:
    q = torch.randn(2, 3, 5, 4, requires_grad=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    one_product = 2 * 2 * 3 * 5 * 5 * 4
    assert host_flops(lambda: attend(q, q, q).sum().backward()) == 7 * one_product
