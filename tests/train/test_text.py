"""Byte text and its batches."""

import pytest
import torch

from cleave.errors import ConfigError
from cleave.train.text import ByteText, decode, encode, python_documentation


def test_targets_are_the_tokens_one_later() -> None:
    tokens, targets = ByteText("abcdefgh").batch(0, n_rows=3, context=4, seed=1)
    assert tokens.shape == targets.shape == (3, 4)
    assert torch.equal(targets, tokens + 1)  # the text counts upwards


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    text = ByteText("the quick brown fox jumps over the lazy dog" * 20)

    def batch(step: int, seed: int) -> torch.Tensor:
        return text.batch(step, n_rows=4, context=16, seed=seed)[0]

    assert torch.equal(batch(3, 0), batch(3, 0))
    assert not torch.equal(batch(3, 0), batch(4, 0))
    assert not torch.equal(batch(3, 0), batch(3, 1))


def test_a_text_shorter_than_a_row_is_refused() -> None:
    with pytest.raises(ConfigError, match="has 4 bytes, a row needs 5"):
        ByteText("abcd").batch(0, n_rows=1, context=4, seed=0)


def test_a_row_may_be_the_whole_text() -> None:
    tokens, targets = ByteText("abcde").batch(0, n_rows=1, context=4, seed=0)
    assert (decode(tokens), decode(targets)) == ("abcd", "bcde")


def test_text_survives_its_tokens_and_halves_of_characters_are_marked() -> None:
    assert decode(encode("naïve")) == "naïve"
    assert decode(encode("ï")[:, :1]) == "\ufffd"


def test_python_ships_enough_english() -> None:
    text = python_documentation()
    assert len(ByteText(text)) > 200_000
    assert all(line.endswith((".", ":")) for line in text.splitlines())
    assert " the " in text
    assert "::=" not in text
