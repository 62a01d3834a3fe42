"""The demo, from the command to the checkpoint."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cleave.cli.demo_run import KINDS, local_agents
from cleave.cli.main import app


def test_local_agents_are_unequal_and_their_names_differ() -> None:
    agents = local_agents(6)
    assert len({agent.name for agent in agents}) == 6
    assert len({(agent.backend, agent.limit_down) for agent in agents[:4]}) == 4
    assert agents[4].limit_down == KINDS[0].limit_down


@pytest.mark.timeout(180)
def test_the_demo_loses_an_agent_and_gets_the_loss_of_a_local_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--steps", "2", "--agents", "2", "--out", str(out)]
    result = CliRunner().invoke(app, ["demo", *options], catch_exceptions=False)
    assert result.exit_code == 0
    assert "Killing laptop in mid-step; newcomer joins." in result.output
    assert "Step 2 lost a device" in result.output
    assert "Devices did 100.00% of" in result.output
    assert "on the fleet: step 2/2" in result.output
    assert "alone: step 2/2" in result.output
    worst = float(result.output.partition("worst ")[2].split()[0])
    assert worst <= 1e-4  # the bound of parity
    assert (out / "model.safetensors").stat().st_size > 40e6  # 10.8 M parameters in fp32
    facts = json.loads((out / "state.json").read_text())["facts"]
    assert len(facts["losses"]) == 2
