"""The tables come with the package, say where they are from, and are searched by name."""

import pytest

from cleave.catalog.tables import find, rows
from cleave.errors import ConfigError

TABLES = ["availability", "devices", "gpus", "link_mixes", "models", "networks"]


@pytest.mark.parametrize("table", TABLES)
def test_every_row_has_a_source_and_a_confidence(table: str) -> None:
    assert rows(table)
    for row in rows(table):
        assert row["source"].strip(), row
        assert row["confidence"] in {"measured", "vendor", "estimated"}, row
        assert None not in row, row  # a value beyond the header's last column


@pytest.mark.parametrize("table", ["devices", "gpus", "models", "networks"])
def test_names_are_used_once(table: str) -> None:
    names = [row["name"].casefold() for row in rows(table)]
    assert len(set(names)) == len(names)


def test_a_name_is_found_in_any_case_and_by_a_part_that_is_its_own() -> None:
    known = ["Alpha", "Alphabet", "Beta"]
    assert find("letter", " ALPHA ", known) == "Alpha"  # exact, though a part of another
    assert find("letter", "bet", ["Alpha", "Beta"]) == "Beta"


def test_a_part_of_a_name_is_the_nearest_where_only_whole_names_will_do() -> None:
    assert find("letter", "beta", ["Alpha", "Beta"], takes_parts=False) == "Beta"
    with pytest.raises(ConfigError, match="'bet' is no letter: did you mean Beta"):
        find("letter", "bet", ["Alpha", "Beta"], takes_parts=False)


def test_a_name_that_is_wrong_is_refused_with_the_nearest() -> None:
    known = ["Alpha", "Alphabet", "Beta"]
    with pytest.raises(ConfigError, match="'alph' is more than one letter: did you mean Alpha, Al"):
        find("letter", "alph", known)
    with pytest.raises(ConfigError, match=r"'Betta' is no letter: did you mean Beta$"):
        find("letter", "Betta", known)
    with pytest.raises(
        ConfigError, match="'x/betta' is neither a letter nor a file: did you mean Beta"
    ):
        find("letter", "x/betta", known, none="neither a letter nor a file")
    with pytest.raises(ConfigError, match="'' is no letter: there are Alpha, Alphabet, Beta"):
        find("letter", "", known)
