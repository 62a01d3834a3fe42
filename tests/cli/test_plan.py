"""``cleave plan``, from the command to the figures."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cleave.catalog.fleets import PRESETS
from cleave.cli.main import app
from cleave.cli.plan_today import RUN_TODAY
from cleave.errors import ConfigError, PlanError

ROOT = Path(__file__).parents[2]
SMALL = ("--model", "gpt2-small", "--tokens", "32768")
LAB = (*SMALL, "--fleet", "lab12")
PROMISED = {  # these keys stay, whatever else may come
    "step_s": "number",
    "lower_bound_s": "number",
    "ratio": "number",
    "family": "string",
    "alternatives": "list",
    "bottleneck": "object",
    "down_bytes_per_device": "number",
    "up_bytes_per_device": "number",
    "devices_used": "integer",
    "a100_equivalents": "number",
    "host_memory_bytes": "number",
    "host_s": "number",
    "server_egress_bytes": "number",
    "plan_s": "number",
}
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "list"}


def plan(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def planned(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan(*arguments, "--json"))
    return found


def documented() -> dict[str, str]:
    """The table of keys in the docs: key to type."""
    text = (ROOT / "docs" / "planner.md").read_text(encoding="utf-8")
    section = text.partition("\n## JSON\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([\w.\[\]]+)` \| ([\w ]+?) \|", section, re.MULTILINE))


def typed(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Keys of a JSON value with the types that stand there."""
    if isinstance(value, dict):
        if key:
            yield key, "object"
        for name, each in value.items():
            yield from typed(each, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        yield key, "list"
        for each in value:
            if isinstance(each, dict):
                yield from ((f"{key}[].{name}", kind) for name, kind in typed(each))
    else:
        yield key, "null" if value is None else TYPES[type(value)]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_plan_whose_figures_agree(name: str) -> None:
    found = planned(*SMALL, "--fleet", name)
    assert found["step_s"] >= found["lower_bound_s"] > 0
    assert found["ratio"] == pytest.approx(found["step_s"] / found["lower_bound_s"])
    assert found["tokens_per_s"] == pytest.approx(found["tokens"] / found["step_s"])
    for way, total in (("down", "server_egress_bytes"), ("up", "server_ingress_bytes")):
        n_bytes = found[f"{way}_bytes_per_device"] * found["devices_used"]
        assert n_bytes == pytest.approx(found[total])
        of_kinds = sum(each["n_used"] * each[f"{way}_bytes"] for each in found["kinds"])
        assert of_kinds == pytest.approx(found[total])
    assert found["devices_used"] == sum(each["n_used"] for each in found["kinds"])
    assert found["devices_present"] == sum(each["n_present"] for each in found["kinds"])
    left_out = sum(each["n_devices"] for each in found["left_out"])
    assert found["devices_used"] + left_out == found["devices_present"]
    assert sum(each["work_share"] for each in found["kinds"]) == pytest.approx(1.0)
    assert all(each["memory_bytes"] <= each["memory_lent_bytes"] for each in found["kinds"])
    busiest = max(
        each[f"{what}_busy_share"] for each in found["kinds"] for what in ("down", "up", "compute")
    )
    assert busiest <= 1 + 1e-6  # no device works longer than the step; shares are rounded means


def test_the_keys_and_their_types_are_those_of_the_docs() -> None:
    table = documented()
    assert table.items() >= PROMISED.items()
    found = dict(typed(planned(*LAB)))
    assert {key for key in found if "[]" not in key} == {key for key in table if "[]" not in key}
    for key, kind in found.items():
        assert kind in table[key].split(" or "), key


def test_the_report_is_for_people() -> None:
    words = " ".join(plan(*LAB, "--total-tokens", "20M").split())
    assert "gpt2-small, 124 M parameters, all weights, on lab12" in words
    assert "32,768 tokens a step: 32 sequences of 1,024, bf16" in words
    assert "20 M tokens are 611 steps" in words


def test_a_config_json_and_a_fleet_file_will_do(tmp_path: Path) -> None:
    sizes = {"model_type": "gpt2", "n_layer": 2, "n_embd": 128, "n_head": 4, "vocab_size": 512}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**sizes, "n_positions": 256}), encoding="utf-8")
    fleet = str(ROOT / "examples" / "fleet.toml")
    found = planned("--model", str(config), "--fleet", fleet, "--tokens", "4096")
    assert (found["parameters"], found["length"]) == (2 * 12 * 128**2 + 512 * 128, 256)
    assert {each["kind"] for each in found["kinds"]} == {"desktop", "laptop", "workstation"}


def test_equal_questions_have_equal_answers() -> None:
    drawn = (*SMALL, "--devices", "24", "--mix", "phones:1,laptops:3", "--seed")
    one, same, other = (planned(*drawn, seed) for seed in "334")
    for answer in (one, same, other):
        del answer["plan_s"]
    assert one == same
    assert one["kinds"] != other["kinds"]


def test_adapters_send_less() -> None:
    full, adapters = planned(*LAB), planned(*LAB, "--lora", "8")
    assert adapters["server_egress_bytes"] < full["server_egress_bytes"]
    assert adapters["host_memory_bytes"] < full["host_memory_bytes"]


def test_four_bytes_take_longer_than_two() -> None:
    assert planned(*LAB, "--wire", "fp32")["step_s"] > planned(*LAB)["step_s"]


def test_the_price_and_the_server_can_be_said() -> None:
    found = planned(
        *LAB, "--price-per-gb", "0.5", "--server-nic", "2Gbit/s", "--total-tokens", "1M"
    )
    run = found["run"]
    assert (run["n_steps"], run["usd_per_gb"]) == (31, 0.5)  # 1,000,000 / 32,768 = 30.5
    assert run["traffic_usd"] == pytest.approx(run["egress_bytes"] / 1e9 * 0.5)
    assert found["step_s"] < planned(*LAB, "--server-nic", "100Mbit/s")["step_s"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--model", "lama-7b"), "did you mean llama-2-7b"),
        (("--model", "models/mine"), "'models/mine' is neither a known model nor a file"),
        (("--model", ""), "'' is neither a known model nor a file"),
        (("--model", "nowhere/config.json"), "cannot be read"),
        (("--tokens", "5000", "--length", "1024"), "use 4096 or 5120 tokens"),
        (("--tokens", "many"), "'many' is not a count"),
        (("--fleet", "lab12", "--devices", "8"), "are two fleets"),
        (("--fleet", "lab13"), "did you mean lab12"),
        (("--fleet", ""), "'' is neither a preset nor a file: there are lab12"),
        (("--devices", "8", "--mix", ""), "mix: '' names no device: write it like phones:3"),
        (("--seed", "3"), "--seed 3 is that of a draw: add --devices N"),
        (("--lora", "4000"), "lora_rank is 4000, expected at most 512"),
        (("--fleet", "nowhere.toml"), "cannot be read"),
        (("--mix", "phones"), "add --devices N"),
        (("--devices", "8", "--mix", "toasters"), "toasters"),
        (("--server-nic", "10"), "'10' is not a rate"),
        (("--total-tokens", "20GB"), "'20GB' is not a count"),
    ],
)
def test_a_wrong_question_is_answered_with_what_to_write(
    arguments: tuple[str, ...], text: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        plan(*arguments)


@pytest.mark.parametrize("wire", ["BF16", "Bf16"])
def test_an_element_type_may_be_written_in_any_case(wire: str) -> None:
    assert planned(*LAB, "--wire", wire)["wire"] == "bf16"


def test_one_device_is_not_devices() -> None:
    one = ("--devices", "1", "--mix", "laptops", "--server-memory", "1TB")
    assert planned(*SMALL, *one)["fleet"] == "1 device drawn from laptops"


def test_the_length_that_is_taken_stands_beside_the_one_that_the_model_takes() -> None:
    words = " ".join(plan("--model", "smollm2-135m", "--fleet", "lab12").split())
    assert "64 sequences of 2,048 (the model takes 8,192), bf16" in words
    assert "(the model takes" not in plan(*LAB)
    found = planned(*LAB, "--length", "2048")
    assert found["max_length"] == 1024
    assert (
        "Sequences of 2,048 tokens are longer than the 1,024 that gpt2-small takes."
        in (found["warnings"])
    )


def test_what_runs_today_stands_beside_a_forecast() -> None:
    found = planned(*LAB)
    today = found["today"]
    assert found["family"] == "grid"
    assert today["family"] in {"block", "ksplit", "mixed"}
    runnable = [each["step_s"] for each in found["alternatives"] if each["family"] in RUN_TODAY]
    assert today["step_s"] == min(runnable)
    assert today["tokens_per_s"] == pytest.approx(found["tokens"] / today["step_s"])
    assert today["run_s"] == pytest.approx(found["run"]["n_steps"] * today["step_s"])
    assert not [each for each in found["warnings"] if "does not run" in each]


def test_a_host_that_is_too_small_is_told_what_would_do() -> None:
    with pytest.raises(PlanError) as refusal:
        plan("--model", "llama-2-7b", "--fleet", "lab12", "--server-memory", "64GB")
    for remedy in ("a host with more memory (--server-memory)", "LoRA adapters alone (--lora)"):
        assert remedy in str(refusal.value)
