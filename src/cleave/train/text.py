"""Text as tokens: every byte is one, and a batch depends on the seed and the step alone."""

from __future__ import annotations

import torch

from cleave.errors import ConfigError

VOCABULARY = 256


def python_documentation() -> str:
    """The prose of the language reference that ships with Python, a paragraph a line."""
    from pydoc_data.topics import topics

    paragraphs = "\n\n".join(topics[name] for name in sorted(topics)).split("\n\n")
    lines = (" ".join(paragraph.split()) for paragraph in paragraphs)
    return "\n".join(line for line in lines if _is_prose(line))


def _is_prose(line: str) -> bool:
    """Whether it reads as a sentence: no table, grammar or code."""
    return line[:1].isalpha() and line.endswith((".", ":")) and "::=" not in line


class ByteText:
    """A text to train on, one token a byte.

    Args:
        text: At least one batch row long.
    """

    def __init__(self, text: str) -> None:
        self._tokens = torch.tensor(list(text.encode()), dtype=torch.uint8)

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self._tokens)

    def batch(
        self, step: int, *, n_rows: int, context: int, seed: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and the tokens that follow them, each ``(n_rows, context)`` int64.

        Raises:
            ConfigError: If the text is shorter than one row and the token after it.
        """
        n_starts = len(self) - context
        if n_starts < 1:
            raise ConfigError(
                f"the text has {len(self)} bytes, a row needs {context + 1}: use more"
            )
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(n_starts, (n_rows, 1), generator=generator)
        window = self._tokens[starts + torch.arange(context + 1)].long()  # (n_rows, context + 1)
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()


def encode(text: str) -> torch.Tensor:
    """The tokens of ``text``, ``(1, bytes)`` int64."""
    return torch.tensor([list(text.encode())])


def decode(tokens: torch.Tensor) -> str:
    """The text of tokens of any shape; bytes that form no character become U+FFFD."""
    return bytes(tokens.flatten().tolist()).decode(errors="replace")
