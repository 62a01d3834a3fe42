"""Configurations of Hugging Face are read as transformers builds the models."""

import pytest

from cleave.catalog.hf_config import KINDS, shape_of_config
from cleave.core.step.batch import Batch
from cleave.errors import ConfigError

GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}


@pytest.mark.parametrize("model_type", KINDS)
def test_a_shape_has_the_parameters_of_the_model_that_is_built(model_type: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(model_type)
    shape = shape_of_config(config.to_dict(), model_type)
    with torch.device("meta"):  # shapes alone
        if not shape.vocab:
            model = transformers.AutoModel.from_config(config, add_pooling_layer=False)
        elif shape.is_causal:
            model = transformers.AutoModelForCausalLM.from_config(config)
        else:
            model = transformers.AutoModelForMaskedLM.from_config(config)
    # Norms, biases, positions and a classifier are not counted.
    assert shape.parameters == pytest.approx(model.num_parameters(), rel=0.03)


# Mixtral's experts are one tensor each in transformers 5, no layers that adapters could go to.
@pytest.mark.parametrize("model_type", sorted(KINDS.keys() - {"mixtral"}))
def test_adapters_are_those_of_the_linear_layers_that_are_built(model_type: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(model_type)
    shape = shape_of_config(config.to_dict(), model_type)
    with torch.device("meta"):
        pooling = {} if shape.vocab else {"add_pooling_layer": False}
        model = transformers.AutoModel.from_config(config, **pooling)
    sides = sum(
        sum(layer.weight.shape)
        for name, layer in model.named_modules()
        if type(layer).__name__ in {"Linear", "Conv1D"} and "pooler" not in name
    )
    assert Batch(tokens=1, length=1, lora_rank=1).trained_parameters(shape) == sides


def test_what_the_file_leaves_out_is_what_transformers_takes() -> None:
    shape = shape_of_config(GPT2, "small")
    assert shape.ffn_hidden == 256  # four times as wide as the layers
    assert shape.n_kv_heads == 4
    assert shape.head_dim == 16
    assert shape.is_tied
    assert shape.default_length == 4096
    assert not shape_of_config({**GPT2, "tie_word_embeddings": False}, "small").is_tied


def test_a_sequence_is_as_long_as_the_model_takes_and_4096_unless_more_is_asked_for() -> None:
    short = shape_of_config({**GPT2, "n_positions": 1024}, "small")
    assert (short.default_length, short.max_length) == (1024, 1024)
    long = shape_of_config({**GPT2, "n_positions": 131072}, "small")
    assert (long.default_length, long.max_length) == (4096, 131072)
    assert shape_of_config(GPT2, "small").max_length is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layer": None}, "x: num_hidden_layers is missing .looked for num_hidden_layers, n_lay"),
        ({"n_layer": 0}, "x: n_layer is 0, expected a whole number above 0"),
        ({"n_layer": -1}, "x: n_layer is -1"),
        ({"n_layer": 2.5}, "x: n_layer is 2.5"),
        ({"n_layer": "2"}, "x: n_layer is '2'"),
        ({"n_layer": 10**9}, "x: n_layer is 1000000000, expected .* below 100,000,000"),
        ({"n_layer": True}, "x: n_layer is True"),
        ({"n_head": 5}, "x: 5 heads do not divide the hidden size 64"),
        (
            {"num_key_value_heads": 3},
            "x: num_key_value_heads is 3, expected a number that divides the 4 heads",
        ),
        ({"model_type": "gpt_2"}, "x: model_type is 'gpt_2', expected one of gpt2"),
        ({"model_type": None}, "x: model_type is None, expected one of llama, mistral"),
        ({"model_type": ["gpt2"]}, r"x: model_type is \['gpt2'\]"),
        ({"model_type": "llama"}, "x: intermediate_size is missing"),
        ({"tie_word_embeddings": "no"}, "x: tie_word_embeddings is 'no', expected true or false"),
        ({"word_embed_proj_dim": 32}, "x: word_embed_proj_dim is 32, expected 64"),
        ({"model_type": "mixtral", "n_inner": 9}, "x: num_local_experts is missing"),
        ({"model_type": "vit", "n_inner": 9}, "x: image_size is missing"),
    ],
)
def test_a_key_that_is_missing_or_wrong_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shape_of_config({**GPT2, **change}, "x")
