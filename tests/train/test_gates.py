"""Gradients come through gates: whatever looks at gradients sees what it sees without a fleet."""

import copy
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.train.local_runtime import LocalRuntime
from tests.train.models import MODELS, batches, loss_of
from tests.train.parity import assert_gradients, gradients_of
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from cleave.errors import WorkFailedError
from cleave.train.offload import offload

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))


class Net(nn.Module):
    """Three layers, of which one weight is used twice; perhaps checkpointed."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reentrant = reentrant
        layers: list[Any] = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]
        layers[2][0].weight = layers[0][0].weight
        self.blocks: Any = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x.square().sum()


def pair(fleet: LocalRuntime, **kwargs: Any) -> tuple[Net, Net]:
    """The same net, local and offloaded."""
    local = Net(**kwargs)
    return local, offload(copy.deepcopy(local), fleet, "devices")


def names(fleet: LocalRuntime) -> list[str]:
    return [work.name for work in fleet.submitted]


def test_no_weight_gradient_is_waited_for_before_all_are_started(fleet: LocalRuntime) -> None:
    local, net = pair(fleet)
    loss = net(X)
    fleet.held_back.clear()
    backward = threading.Thread(target=loss.backward)
    backward.start()
    while names(fleet).count("weight grad") < 3:
        backward.join(0.01)
    fleet.held_back.set()
    backward.join(60)
    assert names(fleet)[-1] == "weight grad"
    local(X).backward()
    assert_gradients(gradients_of(net), gradients_of(local))


def test_what_finished_gradients_read_is_given_back_during_backward(fleet: LocalRuntime) -> None:
    net = offload(nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(8))), fleet, "devices")
    held: list[int] = []
    submit = fleet.submit

    def watch(forms: Any, **kwargs: Any) -> Any:
        pending = submit(forms, **kwargs)
        pending.wait()
        held.append(len(fleet))
        return pending

    loss = net(X).sum()
    fleet.submit = watch  # type: ignore[method-assign]
    loss.backward()
    # Eight weights, eight inputs, a few gradients: as one layer ends its input goes, dW comes.
    assert max(held) <= 8 + 8 + 5


def test_autograd_grad_gives_gradients_and_writes_none(fleet: LocalRuntime) -> None:
    local, net = pair(fleet)
    mine = torch.autograd.grad(net(X), list(net.parameters()))
    theirs = torch.autograd.grad(local(X), list(local.parameters()))
    for a, b in zip(mine, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    assert all(p.grad is None for p in net.parameters())


def test_a_weight_gradient_that_nobody_asked_for_is_not_computed(fleet: LocalRuntime) -> None:
    local, net = pair(fleet)
    x0, x1 = X.clone().requires_grad_(), X.clone().requires_grad_()
    (mine,) = torch.autograd.grad(net(x1), [x1])
    (theirs,) = torch.autograd.grad(local(x0), [x0])
    assert torch.allclose(mine, theirs, atol=1e-6)
    assert "weight grad" not in names(fleet)


def test_hooks_on_parameters_see_the_whole_gradient(fleet: LocalRuntime) -> None:
    seen: dict[str, torch.Tensor] = {}
    local, net = pair(fleet)
    weight = net.blocks[0][0].weight
    weight.register_hook(lambda grad: seen.update(hook=grad.clone()))
    weight.register_post_accumulate_grad_hook(lambda p: seen.update(after=p.grad.clone()))
    net(X).backward()
    local(X).backward()
    for grad in seen.values():
        assert torch.allclose(grad, local.blocks[0][0].weight.grad, atol=1e-5)
    assert list(seen) == ["hook", "after"]


def test_gradients_accumulate(fleet: LocalRuntime) -> None:
    local, net = pair(fleet)
    for part in X.split(2):
        net(part).backward()
        local(part).backward()
    assert_gradients(gradients_of(net), gradients_of(local))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same(reentrant: bool, fleet: LocalRuntime) -> None:
    local, net = pair(fleet, reentrant=reentrant)
    for model in (local, net):
        model(X.clone().requires_grad_()).backward()
    assert_gradients(gradients_of(net), gradients_of(local))
    assert names(fleet).count("forward") >= 3 + 2


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_checkpointing_of_hugging_face_gives_the_same(
    name: str, reentrant: bool, fleet: LocalRuntime
) -> None:
    torch.manual_seed(0)
    local: Any = MODELS[name](dropout=0.0)
    net = offload(copy.deepcopy(local), fleet, "devices")
    net.gradient_checkpointing_enable({"use_reentrant": reentrant})
    net.enable_input_require_grads()
    for model in (local, net):
        loss_of(model, next(batches(1))).backward()
    assert_gradients(gradients_of(net), gradients_of(local))
    assert names(fleet).count("attention") == 2 + 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_drops_the_same_attention_weights(
    reentrant: bool, fleet: LocalRuntime
) -> None:
    gradients = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        model: Any = offload(MODELS["gpt"](dropout=0.3), fleet, "devices")
        if checkpointed:
            for layer in model.layers:
                recompute(layer, reentrant)
        loss_of(model, next(batches(1))).backward()
        gradients.append(gradients_of(model))
    assert_gradients(*gradients)


def recompute(layer: nn.Module, reentrant: bool) -> None:
    whole = layer.forward

    def forward(x: torch.Tensor) -> Any:
        return checkpoint(whole, x, use_reentrant=reentrant)

    layer.forward = forward


def test_under_checkpointing_no_input_is_kept(fleet: LocalRuntime) -> None:
    _, net = pair(fleet, reentrant=False)
    loss = net(X.clone().requires_grad_())
    assert len(fleet) == 2  # the weights
    assert loss.requires_grad


def test_what_was_recomputed_is_not_sent_again_for_backward(fleet: LocalRuntime) -> None:
    _, net = pair(fleet, reentrant=False)
    adopted: list[tuple[int, ...]] = []
    adopt = fleet.adopt

    def watch(tensor: torch.Tensor, **kwargs: Any) -> Any:
        adopted.append(tuple(tensor.shape))
        return adopt(tensor, **kwargs)

    fleet.adopt = watch  # type: ignore[method-assign]
    net(X.clone().requires_grad_()).backward()
    # Per layer its input forward, its input made again, its output's gradient.
    assert adopted.count((5, 4)) == 3 * 3


def test_a_frozen_weight_gets_no_gradient_and_costs_none(fleet: LocalRuntime) -> None:
    net = offload(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), fleet, "devices")
    net[0].weight.requires_grad_(False)
    net(X).sum().backward()
    assert names(fleet).count("weight grad") == 1
    assert net[0].weight.grad is None
    assert net[0].bias.grad is not None


def test_a_failed_backward_leaves_nothing_for_the_next(fleet: LocalRuntime) -> None:
    local, net = pair(fleet)
    loss = net(X)
    fleet.fails_on = "weight grad"
    with pytest.raises(WorkFailedError, match="weight grad"):
        loss.backward(retain_graph=True)
    fleet.fails_on = None
    net.zero_grad()
    loss.backward()
    local(X).backward()
    assert_gradients(gradients_of(net), gradients_of(local))


def test_a_hook_that_raises_leaves_work_that_the_next_pass_waits_for(fleet: LocalRuntime) -> None:
    _, net = pair(fleet)

    def refuse(_grad: torch.Tensor) -> None:
        raise ValueError("no")

    x = X.clone().requires_grad_()
    handle = net.blocks[0][0].bias.register_hook(refuse)
    fleet.held_back.clear()
    with pytest.raises(ValueError, match="no"):
        net(x).backward()
    fleet.held_back.set()
    handle.remove()
    net(x).backward()  # torch itself keeps what was queued until then
    gc.collect()
    net(x)
    assert len(fleet) == 2  # the weights


def test_two_threads_do_not_mix_their_gradients(fleet: LocalRuntime) -> None:
    local, net = pair(fleet)
    halves = X[:2], X[2:4]

    def run(part: torch.Tensor, grads: dict[str, torch.Tensor]) -> None:
        for _ in range(5):
            found = torch.autograd.grad(net(part), list(net.parameters()))
            grads.update(zip(dict(net.named_parameters()), found, strict=True))

    results: tuple[dict[str, torch.Tensor], ...] = ({}, {})
    threads = [
        threading.Thread(target=run, args=pair_) for pair_ in zip(halves, results, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for part, grads in zip(halves, results, strict=True):
        expected = torch.autograd.grad(local(part), list(local.parameters()))
        for mine, theirs in zip(grads.values(), expected, strict=True):
            assert torch.allclose(mine, theirs, atol=1e-5)


def test_a_layer_used_alone_is_its_own_pass(fleet: LocalRuntime) -> None:
    local, net = pair(fleet)
    for model in (local, net):
        model.blocks[1][0](X).square().sum().backward()
    assert_gradients(gradients_of(net), gradients_of(local))


def test_a_backward_pass_can_be_repeated(fleet: LocalRuntime) -> None:
    local, net = pair(fleet)
    for model in (local, net):
        loss = model(X)
        loss.backward(retain_graph=True)
        loss.backward()
    assert_gradients(gradients_of(net), gradients_of(local))


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_data_parallel_reduces_the_real_gradients(fleet: LocalRuntime) -> None:
    local, net = pair(fleet)
    reduced: list[torch.Tensor] = []

    def reduce(_state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        reduced.append(bucket.buffer().clone())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    parallel = DistributedDataParallel(net)
    parallel.register_comm_hook(None, reduce)
    parallel(X).backward()
    local(X).backward()
    total = sum(float(p.grad.square().sum()) for p in local.parameters() if p.grad is not None)
    assert sum(float(b.square().sum()) for b in reduced) == pytest.approx(total, rel=1e-4)
    assert_gradients(gradients_of(net), gradients_of(local))


def test_tied_weights_stay_tied_and_sum_their_gradients(fleet: LocalRuntime) -> None:
    for name in ("gpt", "gpt2"):
        torch.manual_seed(0)
        local: Any = MODELS[name]()
        net = offload(copy.deepcopy(local), fleet, "devices")
        for model in (local, net):
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            loss_of(model, next(batches(1))).backward()
            optimizer.step()
        assert_gradients(gradients_of(net), gradients_of(local))
        ends: Callable[[Any], tuple[Any, Any]] = (
            (lambda m: (m.tokens, m.head))
            if name == "gpt"
            else (lambda m: (m.get_input_embeddings(), m.get_output_embeddings()))
        )
        embedding, head = ends(net)
        assert embedding.weight is head.weight
