"""The plain GPT that demo, examples and tests train."""

import torch

from cleave.train.gpt import GPT, GPTConfig


def small() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocabulary=11, context=8, width=12, n_layers=2, n_heads=3)).eval()


def test_the_default_has_ten_million_parameters() -> None:
    with torch.device("meta"):
        model = GPT(GPTConfig())
    assert 10e6 < sum(p.numel() for p in model.parameters()) < 12e6


def test_the_head_shares_its_weight_with_the_embedding() -> None:
    model = small()
    assert model.head.weight is model.tokens.weight


def test_a_new_model_knows_nothing() -> None:
    tokens = torch.randint(0, 11, (4, 8))
    logits = small()(tokens)
    assert logits.shape == (4, 8, 11)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    # A guess among 11 costs log 11 = 2.4; small random weights differ from it by a little.
    assert abs(loss.item() - 2.398) < 0.1


def test_no_token_sees_a_later_one() -> None:
    model = small()
    tokens = torch.randint(0, 11, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 11
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :5], after[:, :5], atol=1e-6)
    assert not torch.allclose(before[:, 5:], after[:, 5:], atol=1e-6)


def test_generate_adds_tokens_beyond_the_context_and_keeps_the_mode() -> None:
    model = small().train()
    prompt = torch.zeros(2, 1, dtype=torch.long)
    out = model.generate(prompt, 12)
    assert out.shape == (2, 13)
    assert torch.equal(out[:, :1], prompt)
    assert model.training
    assert torch.equal(
        model.generate(prompt, 4, temperature=0), model.generate(prompt, 4, temperature=0)
    )
