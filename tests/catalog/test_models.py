"""Published models have shapes, by name or from their configuration."""

import json
from pathlib import Path

import pytest

from cleave.catalog.models import from_config_json, model_shape, names
from cleave.catalog.tables import rows
from cleave.core.step.model import ModelShape
from cleave.errors import ConfigError

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}


def write(folder: Path, config: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


@pytest.mark.parametrize("name", names())
def test_a_shape_has_the_models_parameters(name: str) -> None:
    row = next(row for row in rows("models") if row["name"] == name)
    # Norms, biases, positions and a classifier are not counted: up to 2 % of the smallest models.
    assert model_shape(name).parameters == pytest.approx(float(row["params_b"]) * 1e9, rel=0.03)


def test_llama_2_70b_is_as_published() -> None:
    assert model_shape("Llama-2-70B") == ModelShape(
        name="llama-2-70b",
        n_layers=80,
        hidden=8192,
        ffn_hidden=28672,
        n_heads=64,
        n_kv_heads=8,
        head_dim=128,
        vocab=32000,
        is_gated=True,
        default_length=4096,
        max_length=4096,
    )


def test_kinds_of_models_differ() -> None:
    assert not model_shape("bert-base").is_causal
    assert model_shape("gpt2-xl").is_tied
    assert model_shape("vit-b-16").vocab == 0
    mixtral = model_shape("mixtral-8x7b-v0.1")
    assert (mixtral.n_experts, mixtral.experts_per_token) == (8, 2)


def test_all_rows_have_a_shape_or_a_reason() -> None:
    assert {row["name"] for row in rows("models")} - set(names()) == {"t5-base", "opt-350m"}
    with pytest.raises(ConfigError, match="t5-base cannot be planned: it is an encoder-decoder"):
        model_shape("t5-base")
    with pytest.raises(ConfigError, match="opt-350m cannot be planned: its embedding is narrower"):
        model_shape("opt-350m")


def test_gpt2_is_the_smallest_as_its_publisher_names_it() -> None:
    assert model_shape("GPT2") == model_shape("gpt2-small")


def test_what_is_no_model_may_have_been_meant_as_a_file() -> None:
    name = "meta-llama/Llama-2-7b-hf"
    with pytest.raises(
        ConfigError, match=f"'{name}' is neither a known model nor a file: did you mean llama-2-7b"
    ):
        model_shape(name)


def test_a_model_says_how_long_a_sequence_it_takes() -> None:
    assert (model_shape("gpt2-small").max_length, model_shape("gpt2-small").default_length) == (
        1024,
        1024,
    )
    llama = model_shape("llama-3.2-1b")
    assert (llama.max_length, llama.default_length) == (131_072, 8192)


def test_a_slip_in_a_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError,
        match="'llama2-7b' is neither a known model nor a file: did you mean llama-2-7b",
    ):
        model_shape("llama2-7b")


def test_a_configuration_is_named_after_its_folder_or_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    file = write(folder, LLAMA)
    assert from_config_json(file) == from_config_json(folder)
    assert from_config_json(folder).name == "my-llama"
    assert from_config_json(file.rename(folder / "other.json")).name == "other"


def test_a_configuration_gives_the_shape_of_the_table(tmp_path: Path) -> None:
    folder = tmp_path / "llama-2-7b"
    folder.mkdir()
    write(folder, LLAMA)
    assert from_config_json(folder) == model_shape("llama-2-7b")


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is no JSON"), ("[]", "is list, expected a JSON object"), ("\xff", "is no JSON")],
)
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=f"config.json: {message}"):
        from_config_json(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config.json: cannot be read: No such file"):
        from_config_json(tmp_path)
