"""Fleets are drawn as stated, and equal seeds give equal fleets."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from cleave.catalog import fleets
from cleave.catalog.devices import device_models
from cleave.core.fleet import Fleet
from cleave.core.matrix import DType
from cleave.errors import ConfigError

N = 4000
# One standard error of the median of N log-normal draws is a factor exp(1.25 sigma / sqrt(N)):
# 1.016 for the widest (sigma = 0.8). That of the logarithms' standard deviation is 1.1 %.
NEAR = 0.06


def logs(fleet: Fleet, field: str) -> np.ndarray:
    return np.log([getattr(device, field) for device in fleet.devices])


def test_equal_devices_are_those_of_the_closed_forms() -> None:
    first, *others = fleets.equal(3).devices
    assert first.downlink_bytes_per_s == 12.5e6  # 100 Mbit/s
    assert first.uplink_bytes_per_s == 2.5e6
    assert first.flops_per_s == {DType.F32: 2e12, DType.BF16: 2e12, DType.F16: 2e12}
    assert first.latency_s == 0
    assert [device.device_id for device in others] == [2, 3]
    assert {device.uplink_bytes_per_s for device in others} == {2.5e6}


def test_spread_devices_have_the_stated_medians_and_spreads() -> None:
    fleet = fleets.log_normal(N)
    flops = np.log([device.flops_per_s[DType.F32] for device in fleet.devices])
    for values, median, sigma in (
        (logs(fleet, "downlink_bytes_per_s"), 12.5e6, 0.6),
        (logs(fleet, "uplink_bytes_per_s"), 2.5e6, 0.6),
        (flops, 2e12, 0.8),
    ):
        assert np.exp(np.median(values)) == pytest.approx(median, rel=NEAR)
        assert np.std(values) == pytest.approx(sigma, rel=NEAR)


@pytest.mark.parametrize(
    "draw",
    [
        fleets.log_normal,
        fleets.from_table,
        lambda n, seed: fleets.draw(n, "phones,laptops", seed, home_sizes=(2, 3, 4)),
        lambda n, seed: fleets.in_homes(fleets.log_normal(n), seed),
    ],
)
def test_equal_seeds_give_equal_fleets(draw: Callable[[int, int], Fleet]) -> None:
    assert draw(50, 7) == draw(50, 7)
    assert draw(50, 7) != draw(50, 8)


def test_drawn_devices_are_those_of_the_table() -> None:
    for device in fleets.from_table(300).devices:
        row = device_models()[device.name]
        assert device.kind == row.kind
        assert device.flops_per_s == row.flops_per_s
        assert device.memory_bytes == row.usable_memory_bytes
        assert device.site_id == 0
        assert 0 < device.latency_s < 0.1
        assert device.caps.hours_per_day < 24


def test_devices_of_a_home_are_no_faster_than_its_line() -> None:
    fleet = fleets.draw(300, "phones,laptops,desktops", home_sizes=(2, 3, 4))
    at = Counter(device.site_id for device in fleet.devices)
    assert sum(at.values()) == 300
    last = fleet.sites[-1].site_id  # what was left over, perhaps one device with its own line
    assert {n for site_id, n in at.items() if site_id not in (0, last)} == {2, 3, 4}
    lines = {site.site_id: site for site in fleet.sites}
    for device in fleet.devices:
        if device.site_id:
            line = lines[device.site_id]
            assert device.downlink_bytes_per_s <= line.downlink_bytes_per_s
            assert device.uplink_bytes_per_s <= line.uplink_bytes_per_s


def test_homes_put_around_a_fleet_keep_its_devices() -> None:
    bare = fleets.log_normal(101)
    fleet = fleets.in_homes(bare)
    at = Counter(device.site_id for device in fleet.devices)
    assert {at[site.site_id] for site in fleet.sites[:-1]} == {2, 3, 4}
    assert 0 not in at
    for before, after in zip(bare.devices, fleet.devices, strict=True):
        assert before.uplink_bytes_per_s == after.uplink_bytes_per_s
    home = [device for device in fleet.devices if device.site_id == 1]
    assert fleet.sites[0].downlink_bytes_per_s == max(d.downlink_bytes_per_s for d in home)
    with pytest.raises(ConfigError, match="sites already"):
        fleets.in_homes(fleet)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fleets.equal(0), "n_devices is 0, expected 1 or more"),
        (lambda: fleets.log_normal(-1), "n_devices is -1"),
        (lambda: fleets.from_table(0), "n_devices is 0"),
        (lambda: fleets.draw(2, "fridges"), "'fridges' is no device"),
        (lambda: fleets.draw(2, "phones", home_sizes=(0, 1)), r"home_sizes is \(0, 1\)"),
        (lambda: fleets.draw(2, "phones", home_sizes=()), r"home_sizes is \(\)"),
        (
            lambda: fleets.preset("lab13"),
            "'lab13' is neither a preset nor a file: did you mean lab12",
        ),
    ],
)
def test_what_is_no_fleet_is_refused(make: Callable[[], Fleet], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("name", fleets.PRESETS)
def test_a_preset_is_always_the_same_and_has_a_server(name: str) -> None:
    fleet = fleets.preset(name)
    assert fleet == fleets.preset(name)
    assert fleet.server.nic_bytes_per_s < 4e9
    assert fleet.server.memory_bytes < 2e12
    assert all(device.caps.hours_per_day < 24 for device in fleet.devices)


def test_the_presets_are_as_they_are_named() -> None:
    lab, school = fleets.preset("lab12"), fleets.preset("school60")
    assert (len(lab.devices), len(school.devices)) == (12, 60)
    assert {device.uplink_bytes_per_s for device in (*lab.devices, *school.devices)} == {940e6 / 8}
    assert len({device.flops_per_s[DType.F32] for device in lab.devices}) > 3
    assert {device.caps.hours_per_day for device in school.devices} == {10.0}
    homes = fleets.preset("homes1000")
    alone = sum(device.site_id == 0 for device in homes.devices)
    assert alone + len(homes.sites) == 1000
    assert len(homes.sites) > 200  # a quarter of 1,000, less 4 standard errors of 14
    phones = fleets.preset("phones8192").devices
    assert (len(phones), {device.kind for device in phones}) == (8192, {"phone"})
