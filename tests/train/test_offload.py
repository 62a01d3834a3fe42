"""An offloaded model is the model it was: names, classes, copies, files."""

import copy
import io
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.local_runtime import LocalRuntime
from tests.train.models import MODELS, batches, logits_of, loss_of
from tests.train.parity import assert_gradients, gradients_of
from torch import nn

import cleave
from cleave.errors import OffloadError
from cleave.train.offload import offload, restore

TOKENS = next(batches(1))


def saved(model: nn.Module) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("name", MODELS)
def test_names_classes_and_state_stay_as_they_are(name: str, fleet: LocalRuntime) -> None:
    model = MODELS[name]()
    before = copy.deepcopy(model)
    assert offload(model, fleet, "devices") is model
    assert list(model.state_dict()) == list(before.state_dict())
    assert repr(model) == repr(before)
    for mine, plain in zip(model.modules(), before.modules(), strict=True):
        assert isinstance(mine, type(plain))


@pytest.mark.parametrize("name", MODELS)
def test_restore_undoes_all(name: str, fleet: LocalRuntime) -> None:
    model = MODELS[name]()
    before = [(type(module), sorted(vars(module))) for module in model.modules()]
    offload(model, fleet, "devices")
    loss_of(model, TOKENS).backward()
    assert restore(model) is model
    assert [(type(module), sorted(vars(module))) for module in model.modules()] == before
    n_submitted = len(fleet.submitted)
    loss_of(model, TOKENS).backward()
    assert len(fleet.submitted) == n_submitted
    assert len(fleet) == 0


@pytest.mark.parametrize("name", MODELS)
def test_a_deep_copy_is_offloaded_and_apart(name: str, fleet: LocalRuntime) -> None:
    torch.manual_seed(0)
    local = MODELS[name]()
    model = offload(copy.deepcopy(local), fleet, "devices")
    twin = copy.deepcopy(model)
    restore(model)
    for each in (local, twin):
        loss_of(each, TOKENS).backward()
    assert_gradients(gradients_of(twin), gradients_of(local))
    works = [work.name for work in fleet.submitted]
    assert works.count("attention") == works.count("attention_backward") == 2
    assert not gradients_of(model)


@pytest.mark.parametrize("name", MODELS)
def test_a_pickle_holds_the_plain_model(name: str, fleet: LocalRuntime) -> None:
    model = offload(MODELS[name](), fleet, "devices").eval()
    file = saved(model)
    assert b"cleave.train.classes" not in file.getvalue()
    plain = torch.load(file, weights_only=False)
    with torch.no_grad():
        assert torch.allclose(logits_of(plain, TOKENS), logits_of(model, TOKENS), atol=1e-5)
    n_submitted = len(fleet.submitted)
    logits_of(plain, TOKENS)
    assert len(fleet.submitted) == n_submitted


def test_a_pickle_loads_where_there_is_no_cleave(fleet: LocalRuntime, tmp_path: Path) -> None:
    layer = offload(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), fleet, "devices")
    torch.save(layer, tmp_path / "layer.pt")
    code = (
        "import sys, torch; sys.modules['cleave'] = None; "
        f"print(torch.load({str(tmp_path / 'layer.pt')!r}, weights_only=False))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Linear(in_features=2" in done.stdout


def test_a_saved_hugging_face_model_does_not_mention_us(
    fleet: LocalRuntime, tmp_path: Path
) -> None:
    for name in ("gpt2", "llama"):
        model: Any = offload(MODELS[name](), fleet, "devices")
        model.save_pretrained(tmp_path / name)
        assert "cleave" not in (tmp_path / name / "config.json").read_text()
        again = type(restore(model)).from_pretrained(tmp_path / name)
        assert torch.equal(logits_of(again.eval(), TOKENS), logits_of(model.eval(), TOKENS))


def test_offloading_twice_changes_nothing(fleet: LocalRuntime) -> None:
    model = offload(MODELS["gpt"](), fleet, "devices")
    classes = [type(module) for module in model.modules()]
    offload(model, fleet, "devices")
    assert [type(module) for module in model.modules()] == classes
    restore(model)
    assert type(model).__mro__[1] is nn.Module


def test_another_fleet_is_refused_until_restore(fleet: LocalRuntime) -> None:
    model = offload(MODELS["gpt"](), fleet, "devices")
    other = LocalRuntime()
    with pytest.raises(OffloadError, match=r"another fleet: call cleave\.restore"):
        offload(model, other)
    offload(restore(model), other, "devices")
    loss_of(model, TOKENS)
    other.close()
    assert other.submitted
    assert not fleet.submitted


def test_an_unknown_place_is_refused(fleet: LocalRuntime) -> None:
    with pytest.raises(OffloadError, match="place is 'moon', expected 'auto' or 'devices'"):
        offload(nn.Linear(1, 1), fleet, "moon")  # type: ignore[arg-type]


class OwnForward(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


class Subclass(nn.Linear):
    pass


def test_what_stays_is_named_with_its_reason_and_still_works(
    fleet: LocalRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.ModuleDict(
        {
            "own": OwnForward(2, 2),
            "lazy": nn.LazyLinear(2),
            "whole": nn.Linear(2, 2).requires_grad_(False),
            "heads": nn.MultiheadAttention(2, 1),
            "sub": Subclass(2, 2),
            "conv": nn.Conv1d(1, 1, 1),
        }
    )
    model["whole"].weight = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
    with caplog.at_level(logging.WARNING):
        offload(model, fleet, "devices")
    for text in (
        "own (OwnForward has a forward of its own)",
        "lazy (it has no shape yet",
        "whole (its weight is torch.int8)",
        "heads.out_proj (torch.nn.MultiheadAttention",
    ):
        assert text in caplog.text
    assert "conv" not in caplog.text
    model["own"](torch.ones(1, 2))
    model["lazy"](torch.ones(1, 2))
    assert not fleet.submitted
    model["sub"](torch.ones(1, 2))
    assert [work.name for work in fleet.submitted] == ["forward"]


def test_forward_hooks_and_signature_work_on(fleet: LocalRuntime) -> None:
    import inspect

    model = MODELS["gpt2"]()
    before = inspect.signature(model.forward)
    offload(model, fleet, "devices")
    assert inspect.signature(model.forward) == before
    shapes: list[tuple[int, ...]] = []
    head: Any = model.get_submodule("lm_head")
    head.register_forward_hook(lambda _m, _a, out: shapes.append(tuple(out.shape)))
    logits_of(model, TOKENS)
    assert shapes == [(*TOKENS.shape, 37)]


def test_layers_added_later_go_out_after_offloading_again(fleet: LocalRuntime) -> None:
    model = offload(nn.Sequential(nn.Linear(2, 2)), fleet, "devices")
    model.append(nn.Linear(2, 2))
    model(torch.ones(1, 2))
    assert len(fleet.submitted) == 1
    offload(model, fleet, "devices")(torch.ones(1, 2))
    assert len(fleet.submitted) == 3


def test_switching_between_train_and_eval_works_on(fleet: LocalRuntime) -> None:
    torch.manual_seed(0)
    local = MODELS["gpt"](dropout=0.5)
    model = offload(copy.deepcopy(local), fleet, "devices")
    loss_of(model.train(), TOKENS).backward()
    assert torch.allclose(
        logits_of(model.eval(), TOKENS), logits_of(local.eval(), TOKENS), atol=1e-5
    )


class Adapter(nn.Module):
    """A frozen layer and a small trained one beside it, as adapters are put into models."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(x) + self.up(self.down(x))
        return out


def test_adapters_around_offloaded_layers_train_and_the_base_is_sent_once(
    fleet: LocalRuntime,
) -> None:
    model = offload(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), fleet, "devices")
    model.requires_grad_(False)
    for name, layer in list(model.named_children()):
        model.set_submodule(name, Adapter(layer))
    trained = [p for p in model.parameters() if p.requires_grad]
    before = [p.clone() for p in trained]
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    sent = []
    for _ in range(3):
        optimizer.zero_grad()
        start = fleet.bytes_down
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
        sent.append(fleet.bytes_down - start)
    assert all(not torch.equal(p, b) for p, b in zip(trained, before, strict=True))
    assert {work.name for work in fleet.submitted} == {"forward", "input grad"}
    assert sent[1] == sent[2] < sent[0]


def test_a_parametrized_layer_trains(fleet: LocalRuntime) -> None:
    torch.manual_seed(0)
    local = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    model = offload(copy.deepcopy(local), fleet, "devices")
    for each in (local, model):
        each(torch.ones(2, 4)).square().sum().backward()
    assert_gradients(gradients_of(model), gradients_of(local))
    assert fleet.submitted


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_under_compile_offloaded_layers_are_graph_breaks(fleet: LocalRuntime) -> None:
    torch.manual_seed(0)
    local = MODELS["gpt"]()
    model = offload(copy.deepcopy(local), fleet, "devices")
    compiled: Any = torch.compile(model, backend="eager")
    loss_of(compiled, TOKENS).backward()
    loss_of(local, TOKENS).backward()
    assert_gradients(gradients_of(model), gradients_of(local))
    assert [work.name for work in fleet.submitted].count("attention") == 2


def test_the_public_names_are_these() -> None:
    assert cleave.offload is offload
    assert cleave.restore is restore


def test_what_cannot_be_offloaded_is_refused_at_once(fleet: LocalRuntime) -> None:
    with pytest.raises(OffloadError, match=r"expected a torch\.nn\.Module to offload, got str"):
        offload("model", fleet)  # type: ignore[type-var]
    with pytest.raises(OffloadError, match=r"expected a cleave\.Fleet, got NoneType"):
        offload(torch.nn.Linear(2, 2), None)  # type: ignore[arg-type]
