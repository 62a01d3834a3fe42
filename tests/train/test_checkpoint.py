"""Checkpoints hold a run whole."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from cleave.errors import ConfigError
from cleave.train import checkpoint


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.embed(tokens))
        return out


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.tensor([0, 2, 4])).square().mean().backward()
    optimizer.step()


def trained() -> tuple[Tied, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer)
    return model, optimizer


def test_a_loaded_run_goes_on_as_the_saved_one(tmp_path: Path) -> None:
    model, optimizer = trained()
    folder = checkpoint.save(tmp_path / "run", model, optimizer, {"step": 1})
    step(model, optimizer)

    other = Tied()
    other_optimizer = torch.optim.AdamW(other.parameters(), lr=0.5)
    facts = checkpoint.load(folder, other, other_optimizer)
    assert facts == {"step": 1}
    assert other.head.weight is other.embed.weight
    step(other, other_optimizer)
    assert torch.equal(other.embed.weight, model.embed.weight)


def test_a_later_checkpoint_replaces_the_earlier_one(tmp_path: Path) -> None:
    model, optimizer = trained()
    checkpoint.save(tmp_path / "run", model, optimizer, {"step": 1})
    before = copy.deepcopy(model.state_dict())
    step(model, optimizer)
    checkpoint.save(tmp_path / "run", model, optimizer, {"step": 2})

    other = Tied()
    assert checkpoint.load(tmp_path / "run", other) == {"step": 2}
    assert not torch.equal(other.embed.weight, before["embed.weight"])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no checkpoint in .*nothing"):
        checkpoint.load(tmp_path / "nothing", Tied())
