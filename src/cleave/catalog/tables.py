"""The package's tables: read once, and searched by name."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from cleave.errors import ConfigError

Row = Mapping[str, str]
MBIT = 1e6 / 8  # bytes


@cache
def rows(table: str) -> tuple[Row, ...]:
    """The rows of ``data/<table>.csv``, as text by column."""
    file = files("cleave.catalog") / "data" / f"{table}.csv"
    return tuple(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def find(
    what: str, name: str, known: Iterable[str], *, none: str = "", takes_parts: bool = True
) -> str:
    """The entry that is meant by a name, or by a part of it that only one entry has.

    Args:
        what: For the error: ``"device"``.
        name: In whatever case.
        known: The entries.
        none: For the error where it is none of them, if there is more to say than ``"no device"``.
        takes_parts: Whether a part of a name will do.

    Raises:
        ConfigError: If it is none of them, or several; it names the nearest.
    """
    by_text = {each.casefold(): each for each in known}
    text = name.strip().casefold()
    if text in by_text:
        return by_text[text]
    parts = [each for key, each in by_text.items() if text and text in key]
    if len(parts) == 1 and takes_parts:
        return parts[0]
    last = text.rpartition("/")[2]  # of a path
    near = parts or [by_text[key] for key in difflib.get_close_matches(last, by_text, n=3)]
    said = f"more than one {what}" if parts and takes_parts else none or f"no {what}"
    raise ConfigError(
        f"{name!r} is {said}: "
        f"{'did you mean' if near else 'there are'} {', '.join(near or by_text.values())}"
    )
