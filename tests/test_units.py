"""Quantities are read and printed as people write them."""

import pytest

from cleave import units
from cleave.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("4096", 4096),
        ("2GB", 2 * 10**9),
        ("2 gb", 2 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5g", 1_500_000_000),
        ("3k", 3000),
    ],
)
def test_sizes(text: str, n_bytes: int) -> None:
    assert units.parse_bytes(text) == n_bytes


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("20Mbit/s", 2.5e6),
        ("20 Mbps", 2.5e6),
        ("2MB/s", 2e6),
        ("1 Gbit/s", 1.25e8),
        ("800bit/s", 100),
        ("8Mb/s", 1e6),
    ],
)
def test_rates_in_bits_and_in_bytes(text: str, bytes_per_s: float) -> None:
    assert units.parse_rate(text) == bytes_per_s


@pytest.mark.parametrize("text", ["", "many", "-2GB", "2XB", "2GB/s", "nan", "1e3"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="write it like 2GB"):
        units.parse_bytes(text)


@pytest.mark.parametrize("text", ["20", "20MB", "0Mbit/s", "fast", "-1Mbit/s"])
def test_what_is_no_rate_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="write it like 20Mbit/s"):
        units.parse_rate(text)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (999_600, "1 MB"),
        (25e9, "25 GB"),
        (4e15, "4 PB"),
    ],
)
def test_sizes_are_printed_short(n_bytes: float, text: str) -> None:
    assert units.format_bytes(n_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "12 ms"), (1.0, "1.0 s"), (59.96, "1:00"), (185, "3:05"), (7200, "2:00:00")],
)
def test_times_are_printed_short(seconds: float, text: str) -> None:
    assert units.format_seconds(seconds) == text


def test_rates_are_printed_in_bits_and_arithmetic_in_flops() -> None:
    assert units.format_rate(2.5e6) == "20 Mbit/s"
    assert units.format_flops_per_s(1.02e11) == "102 GFLOP/s"
    assert units.format_flops(6.6e10) == "66 GFLOP"
