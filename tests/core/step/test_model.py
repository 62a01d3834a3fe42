"""A model's sizes give its parameters and operations."""

from dataclasses import replace
from typing import Any

import pytest
from tests.core.step.shapes import LLAMA_2_7B, TINY

from cleave.core.step.batch import Batch
from cleave.core.step.model import ModelShape
from cleave.errors import ConfigError


def test_linear_layers_of_one_input_are_one_product() -> None:
    # Queries 4 x 2, keys and values 2 x 2 each: 16; gate and up 2 x 16.
    sizes = [(linear.name, linear.k, linear.n) for linear in TINY.linears]
    assert sizes == [("qkv", 8, 16), ("out", 8, 8), ("up", 8, 32), ("down", 16, 8)]


def test_parameters_are_those_of_the_published_model() -> None:
    assert LLAMA_2_7B.parameters == pytest.approx(6.738e9, rel=1e-3)  # norms are left out


def test_a_tied_head_is_counted_once() -> None:
    assert TINY.parameters - replace(TINY, is_tied=True).parameters == 10 * 8


def test_forward_flops_are_two_per_weight_and_token() -> None:
    assert TINY.linear_flops(5) == 2 * 5 * TINY.layer_parameters


def test_frozen_weights_save_a_third_of_the_products_and_none_of_attention() -> None:
    # Per token: 3 passes over 2 layers' weights and the head, or 2 of them; attention 3 times both.
    weights = 2 * (2 * TINY.layer_parameters + 8 * 10) * 16
    attention = 3 * 2 * TINY.attention_flops(16, 8)
    assert TINY.step_flops(16, 8) == 3 * weights + attention
    assert TINY.step_flops(16, 8, trains=False) == 2 * weights + attention


def test_an_expert_sees_its_share_of_the_tokens() -> None:
    experts = replace(TINY, n_experts=8, experts_per_token=2)
    dense = TINY.linear_flops(4) - 2 * 4 * (8 * 16 + 8 * 8)
    assert experts.linear_flops(4) == 2 * 4 * (8 * 16 + 8 * 8) + 2 * dense


@pytest.mark.parametrize("field", ["n_layers", "hidden", "ffn_hidden", "n_heads", "head_dim"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_size_that_is_none_names_the_field(field: str, value: float) -> None:
    changed: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError, match=field):
        replace(TINY, **changed)


def test_tokens_must_be_whole_sequences() -> None:
    with pytest.raises(ConfigError, match="use 3072 or 4096 tokens"):
        Batch(tokens=4000, length=1024)
    with pytest.raises(ConfigError, match="use 1024 tokens"):
        Batch(tokens=1000, length=1024)


def test_a_batch_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="tokens is 0"):
        Batch(tokens=0, length=16)


def test_adapters_have_rank_times_both_sides_of_each_layer() -> None:
    batch = Batch(tokens=16, length=16, lora_rank=4)
    query, key_value, gate_or_up = 8 + 8, 8 + 4, 8 + 16
    per_layer = query + 2 * key_value + (8 + 8) + 2 * gate_or_up + (16 + 8)
    assert batch.trained_parameters(TINY) == 2 * 4 * per_layer
    assert Batch(tokens=16, length=16).trained_parameters(TINY) == TINY.parameters


def test_a_layer_that_is_published_as_one_has_one_adapter() -> None:
    fused = replace(TINY, is_qkv_fused=True, is_gate_fused=True)
    per_layer = (8 + 16) + (8 + 8) + (8 + 32) + (16 + 8)
    assert Batch(tokens=16, length=16, lora_rank=4).trained_parameters(fused) == 2 * 4 * per_layer
    assert fused.parameters == TINY.parameters


def test_llama_2_7b_has_the_adapters_that_are_counted_by_peft() -> None:
    batch = Batch(tokens=4096, length=4096, lora_rank=16)
    assert batch.trained_parameters(LLAMA_2_7B) == 39_976_960  # on all linear layers but the head


def test_a_rank_above_the_smaller_side_of_a_matrix_is_refused() -> None:
    most = Batch(tokens=16, length=16, lora_rank=4)
    assert most.trained_parameters(TINY)
    with pytest.raises(
        ConfigError, match="lora_rank is 5, expected at most 4, the smallest side of tiny's matric"
    ):
        replace(most, lora_rank=5).trained_parameters(TINY)


def test_heads_share_keys_and_values_evenly() -> None:
    with pytest.raises(ConfigError, match="tiny: n_kv_heads is 3, expected a number that divides"):
        replace(TINY, n_kv_heads=3)


def test_a_model_without_vocabulary_has_no_head() -> None:
    assert replace(TINY, vocab=0).head is None
    assert isinstance(TINY, ModelShape)
