"""Attention of Hugging Face models: masks, windows, caches, and what falls back."""

import copy
from typing import Any

import pytest
import torch
from tests.train.local_runtime import LocalRuntime
from tests.train.models import CONTEXT, MODELS, VOCABULARY, batches, loss_of
from tests.train.parity import assert_gradients, gradients_of
from torch import nn

from cleave.train.offload import offload, restore

transformers: Any = pytest.importorskip("transformers")
masking: Any = pytest.importorskip("transformers.masking_utils")

TOKENS = next(batches(1))
PADDED = {
    "left": torch.tensor([[1] * CONTEXT, [0] * 4 + [1] * (CONTEXT - 4), [0] + [1] * (CONTEXT - 1)]),
    "right": torch.tensor([[1] * CONTEXT, [1] * (CONTEXT - 4) + [0] * 4, [1] * CONTEXT]),
}


def mistral() -> nn.Module:
    config = transformers.MistralConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
        pad_token_id=0,
    )
    model: nn.Module = transformers.MistralForCausalLM(config)
    return model.train()


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model: nn.Module = transformers.BertForMaskedLM(config)
    return model.train()


CASES = {**MODELS, "mistral": mistral, "bert": bert}


def n_attentions(fleet: LocalRuntime) -> int:
    return sum(work.name == "attention" for work in fleet.submitted)


def pair(name: str, fleet: LocalRuntime) -> tuple[Any, Any]:
    torch.manual_seed(0)
    local = CASES[name]()
    return local, offload(copy.deepcopy(local), fleet, "devices")


@pytest.mark.parametrize("padding", PADDED)
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "bert"])
def test_padding_is_seen_and_attention_still_goes_out(
    name: str, padding: str, fleet: LocalRuntime
) -> None:
    local, model = pair(name, fleet)
    mask = PADDED[padding]
    labels = TOKENS.masked_fill(mask == 0, -100)
    losses = []
    for each in (local, model):
        out = each(input_ids=TOKENS, attention_mask=mask, labels=labels)
        out.loss.backward()
        losses.append(out.loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert_gradients(gradients_of(model), gradients_of(local))
    assert n_attentions(fleet) == 2


@pytest.mark.parametrize("name", ["mistral", "bert", "llama"])
def test_without_padding_no_mask_is_made(name: str, fleet: LocalRuntime) -> None:
    local, model = pair(name, fleet)
    for each in (local, model):
        loss_of(each, TOKENS).backward()
    assert_gradients(gradients_of(model), gradients_of(local))
    assert n_attentions(fleet) == 2


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
@pytest.mark.parametrize("padded", [False, True])
def test_generate_with_a_cache_gives_the_same_tokens(
    name: str, padded: bool, fleet: LocalRuntime
) -> None:
    local, model = pair(name, fleet)
    prompt = {"input_ids": TOKENS[:, :5], "attention_mask": PADDED["left"][:, :5]}
    if not padded:
        prompt["attention_mask"] = torch.ones_like(prompt["attention_mask"])
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = local.eval().generate(**prompt, **options)
    assert torch.equal(model.eval().generate(**prompt, **options), expected)
    assert n_attentions(fleet) == 2 * 6


def test_a_dense_mask_falls_back_and_is_named_once(
    fleet: LocalRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    local, model = pair("llama", fleet)
    mask = torch.ones(3, 1, CONTEXT, CONTEXT, dtype=torch.bool).tril()
    mask[:, :, 5:, 2] = False
    mine, theirs = (each(input_ids=TOKENS, attention_mask=mask).logits for each in (model, local))
    assert torch.allclose(mine, theirs, atol=1e-5)
    assert n_attentions(fleet) == 0
    assert caplog.text.count("attention with a mask of shape (3, 1, 11, 11)") == 1


def test_packed_sequences_do_not_see_each_other(fleet: LocalRuntime) -> None:
    local, model = pair("llama", fleet)
    positions = torch.cat((torch.arange(6), torch.arange(CONTEXT - 6)))[None].expand(3, -1)
    mine, theirs = (
        each(input_ids=TOKENS, position_ids=positions).logits for each in (model, local)
    )
    assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "mistral", "bert"])
def test_what_is_not_worth_while_is_masked_here_alike(name: str) -> None:
    fleet = LocalRuntime(worthwhile=False)
    torch.manual_seed(0)
    local = CASES[name]()
    model = offload(copy.deepcopy(local), fleet)
    for mask in PADDED.values():
        logits = [each(input_ids=TOKENS, attention_mask=mask).logits for each in (local, model)]
        kept = mask.bool()  # what padding itself sees is nobody's business
        assert torch.allclose(logits[0][kept], logits[1][kept], atol=1e-5)
    fleet.close()
    assert not fleet.submitted


def test_asked_for_attention_weights_come_as_before(fleet: LocalRuntime) -> None:
    _, model = pair("llama", fleet)
    model.set_attn_implementation("eager")
    out = model(input_ids=TOKENS, output_attentions=True)
    assert out.attentions[0].shape == (3, 4, CONTEXT, CONTEXT)
    assert n_attentions(fleet) == 0


def test_other_models_are_left_alone_and_restore_puts_the_tables_back(
    fleet: LocalRuntime,
) -> None:
    tables = (
        transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS,
        masking.ALL_MASK_ATTENTION_FUNCTIONS,
    )
    local, model = pair("llama", fleet)
    during = [table["sdpa"] for table in tables]
    loss_of(local, TOKENS).backward()
    assert n_attentions(fleet) == 0
    restore(model)
    after = [table["sdpa"] for table in tables]
    assert all(a is not b for a, b in zip(during, after, strict=True))
    assert after[1] is masking.sdpa_mask


def test_autocast_and_a_float_weighted_model_agree(fleet: LocalRuntime) -> None:
    _, model = pair("llama", fleet)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(model, TOKENS)
    loss.backward()
    assert loss.isfinite()
    assert n_attentions(fleet) == 2
