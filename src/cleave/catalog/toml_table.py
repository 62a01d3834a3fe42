"""Reads the tables of a TOML file; each error names file, table, field and value."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from cleave.errors import ConfigError


class TomlTable:
    """One table: fields are asked for by name, and what nobody asked for is an error."""

    def __init__(self, where: str, values: Mapping[str, object]) -> None:
        """Begin to read.

        Args:
            where: File and table, for errors: ``"fleet.toml: [[device]] 2"``.
            values: Its fields.
        """
        self.where = where
        self._values = values
        self._asked: set[str] = set()

    def refuse(self, key: str, expected: str) -> NoReturn:
        """Raise ConfigError that says what a field is and what it should be."""
        value = self._values.get(key)
        said = "is missing" if value is None else f"is {value!r}"
        raise ConfigError(f"{self.where}: {key} {said}, expected {expected}")

    def has(self, key: str) -> bool:
        """Whether the field is there."""
        self._asked.add(key)
        return key in self._values

    def text(self, key: str, example: str) -> str | None:
        """A text that is not empty, or None if the field is not there.

        Raises:
            ConfigError: If it is something else.
        """
        if not self.has(key):
            return None
        value = self._values[key]
        if not isinstance(value, str) or not value.strip():
            self.refuse(key, f'a text like "{example}"')
        return value

    def choice(self, key: str, known: Iterable[str]) -> str | None:
        """One of the known texts, or None if the field is not there.

        Raises:
            ConfigError: If it is none of them; it names the nearest.
        """
        known = list(known)
        value = self.text(key, known[0] if known else "name")
        if value is not None and value not in known:
            near = difflib.get_close_matches(value, known, n=3) or known
            self.refuse(key, f"one of {', '.join(near)}" if near else "none: there are none")
        return value

    def quantity(
        self,
        key: str,
        parse: Callable[[str], float],
        example: str,
        *,
        most: str,
        may_be_zero: bool = False,
    ) -> float | None:
        """A number with its unit, or None if the field is not there.

        Args:
            key: The field.
            parse: One of `cleave.units`.
            example: What to write.
            most: More than this is a slip of units: ``"80Tbit/s"``.
            may_be_zero: Whether 0 has a meaning.

        Raises:
            ConfigError: If it cannot be read, is too much, or is 0 and may not be.
        """
        value = self.text(key, example)
        if value is None:
            return None
        try:
            number = parse(value)
        except ConfigError as error:
            raise ConfigError(f"{self.where}: {key}: {error}") from error
        if number > parse(most) or (number == 0 and not may_be_zero):
            least = "0 or more" if may_be_zero else "above 0"
            self.refuse(key, f'a text like "{example}", {least} and at most {most}')
        return number

    def number(self, key: str, example: str, *, most: float) -> float | None:
        """A plain number above zero, or None if the field is not there.

        Raises:
            ConfigError: If it is something else, or more than ``most``.
        """
        if not self.has(key):
            return None
        value = self._values[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            self.refuse(key, f"a number like {example}, above 0 and at most {most:g}")
        return float(value)

    def count(self, key: str, *, most: int) -> int | None:
        """A whole number from 1 on, or None if the field is not there.

        Raises:
            ConfigError: If it is something else, or more than ``most``.
        """
        if not self.has(key):
            return None
        value = self._values[key]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            self.refuse(key, f"a whole number from 1 to {most}")
        return value

    def flag(self, key: str) -> bool | None:
        """True or false, or None if the field is not there.

        Raises:
            ConfigError: If it is something else.
        """
        if not self.has(key):
            return None
        value = self._values[key]
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def table(self, key: str) -> TomlTable | None:
        """The table of that name, or None if it is not there.

        Raises:
            ConfigError: If it is no table.
        """
        if not self.has(key):
            return None
        value = self._values[key]
        if not isinstance(value, dict):
            self.refuse(key, f"a table [{key}]")
        return TomlTable(f"{self.where}: [{key}]", value)

    def tables(self, key: str) -> list[TomlTable]:
        """The tables of that name in order; none if it is not there.

        Raises:
            ConfigError: If they are no array of tables.
        """
        if not self.has(key):
            return []
        values = self._values[key]
        if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
            self.refuse(key, f"tables [[{key}]] with two brackets")
        return [TomlTable(f"{self.where}: [[{key}]] {i}", each) for i, each in enumerate(values, 1)]

    def close(self) -> None:
        """End reading.

        Raises:
            ConfigError: If a field was not asked for; it names the nearest that was.
        """
        for key in self._values:
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, n=1)
                hint = f"did you mean {near[0]}" if near else f"it has {_listed(self._asked)}"
                raise ConfigError(f"{self.where}: {key} is no field of it: {hint}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
