"""Links of the table, and links drawn around them."""

import numpy as np
import pytest

from cleave.catalog.devices import KINDS
from cleave.catalog.networks import HOME, RATE_SIGMA, Link, draw_link, link, links, mix
from cleave.errors import ConfigError

N = 4000
# The median of N log-normal draws is off by a factor exp(1.25 sigma / sqrt(N)) = 1.01 (one standard
# error, sigma = 0.5); the median of a mix by more, where few of its draws are near it.
NEAR = 0.1


def test_rates_are_bytes_and_latencies_seconds() -> None:
    cable = link("us-cable-xfinity")
    assert cable.downlink_bytes_per_s == pytest.approx(236.07e6 / 8)
    assert cable.uplink_bytes_per_s == pytest.approx(22.3e6 / 8)
    assert cable.latency_s == pytest.approx(0.014)


@pytest.mark.parametrize("each", links().values(), ids=lambda each: each.name)
def test_every_row_is_usable(each: Link) -> None:
    assert 0 < each.uplink_bytes_per_s <= 1.25e9
    assert 0 < each.downlink_bytes_per_s <= 1.25e9
    assert 0 < each.latency_s < 1


@pytest.mark.parametrize("who", [HOME, *KINDS])
def test_every_kind_has_links_that_are_in_the_table(who: str) -> None:
    known, shares = mix(who)
    assert len(known) == len(shares)
    assert sum(shares) == pytest.approx(1)


def test_a_link_is_named_in_full() -> None:
    assert link("LAN-gigabit").name == "lan-gigabit"
    with pytest.raises(ConfigError, match="'lan' is no link: did you mean lan-gigabit"):
        link("lan")


def test_who_has_no_links_is_named() -> None:
    with pytest.raises(ConfigError, match="no links are known for 'fridge'"):
        mix("fridge")


def test_households_have_their_rows_median_and_the_stated_spread() -> None:
    rng = np.random.default_rng(0)
    drawn = [draw_link("phone", rng) for _ in range(N)]
    wifi = [each.downlink_bytes_per_s for each in drawn if each.name == "us-home-wifi-phone"]
    assert len(wifi) / N == pytest.approx(0.75, abs=0.03)  # weight 3 of 4; 4 standard errors
    assert np.median(wifi) == pytest.approx(89.6e6 / 8, rel=NEAR)
    assert np.std(np.log(wifi)) == pytest.approx(RATE_SIGMA, rel=NEAR)


def test_one_factor_scales_both_ways() -> None:
    drawn = draw_link("phone", np.random.default_rng(1))
    row = link(drawn.name)
    down = drawn.downlink_bytes_per_s / row.downlink_bytes_per_s
    assert down == pytest.approx(drawn.uplink_bytes_per_s / row.uplink_bytes_per_s)


def test_homes_have_about_the_worlds_median() -> None:
    rng = np.random.default_rng(0)
    drawn = [draw_link(HOME, rng) for _ in range(N)]
    down = np.median([each.downlink_bytes_per_s for each in drawn]) * 8 / 1e6
    up = np.median([each.uplink_bytes_per_s for each in drawn]) * 8 / 1e6
    assert down == pytest.approx(97.61, rel=0.2)  # the weights are round numbers
    assert up == pytest.approx(52.84, rel=0.2)


def test_wifi_in_front_of_a_line_has_the_lower_rate_and_both_latencies() -> None:
    both = link("wifi5-link").behind(link("us-cable-xfinity"))  # 200/200 and 236/22.3 Mbit/s
    assert both.downlink_bytes_per_s == pytest.approx(200e6 / 8)
    assert both.uplink_bytes_per_s == pytest.approx(22.3e6 / 8)
    assert both.latency_s == pytest.approx(0.003 + 0.014)


def test_what_was_measured_through_a_line_has_its_latency_already() -> None:
    phone = link("us-home-wifi-phone")
    assert phone.behind(link("us-cable-xfinity")).latency_s == phone.latency_s
