"""Mixes are read as people write them."""

import numpy as np
import pytest

from cleave.catalog.devices import of_kind
from cleave.catalog.mixes import draw_models, parse_mix
from cleave.errors import ConfigError


def test_parts_are_kinds_or_devices_with_weights() -> None:
    phones, pcs = parse_mix(" phones:3, RTX 3060 ")
    assert phones == (of_kind("phone"), 0.75)
    assert [model.name for model in pcs[0]] == ["Desktop PC, RTX 3060 12GB"]
    assert pcs[1] == 0.25


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mix: '' names no device: write it like phones:3,laptops:1"),
        ("phones,", "mix: '' names no device"),
        (":3", "mix: ':3' names no device"),
        ("fridges", "mix: 'fridges' is no device.*kinds are phone, tablet"),
        ("phones:0", "the weight of 'phones' is '0', expected a number above 0"),
        ("phones:-1", "the weight of 'phones' is '-1'"),
        ("phones:nan", "the weight of 'phones' is 'nan'"),
        ("phones:many", "the weight of 'phones' is 'many'.*write it like phones:3,laptops:1"),
        ("MacBook", "more than one device: did you mean MacBook Air"),
    ],
)
def test_what_is_no_mix_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_mix(text)


def test_draws_have_the_shares_of_the_weights() -> None:
    drawn = draw_models("phones:3,laptops:1", 4000, np.random.default_rng(0))
    n_phones = sum(model.kind == "phone" for model in drawn)
    assert n_phones / 4000 == pytest.approx(0.75, abs=0.03)  # 4 standard errors of 0.0068
    assert {model.name for model in drawn} == {
        model.name for kind in ("phone", "laptop") for model in of_kind(kind)
    }
