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


@pytest.mark.parametrize("text", ["", "many", "-2GB", "2XB", "2GB/s", "nan", "1e3", "9" * 400])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="write it like 2GB"):
        units.parse_bytes(text)


@pytest.mark.parametrize("text", ["20", "20MB", "0Mbit/s", "fast", "-1Mbit/s"])
def test_what_is_no_rate_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="write it like 20Mbit/s"):
        units.parse_rate(text)


@pytest.mark.parametrize(
    ("text", "flops_per_s"),
    [("2TFLOP/s", 2e12), ("500 GFLOPS", 5e11), ("1.5 pflop/s", 1.5e15), ("8flops/s", 8.0)],
)
def test_rates_of_arithmetic(text: str, flops_per_s: float) -> None:
    assert units.parse_flops_per_s(text) == flops_per_s


@pytest.mark.parametrize("text", ["2T", "2", "0GFLOP/s", "-1GFLOP/s", "nanFLOP/s", "fast"])
def test_what_is_no_rate_of_arithmetic_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="write it like 2TFLOP/s"):
        units.parse_flops_per_s(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500us", 500e-6), ("10ms", 0.01), ("0.5 s", 0.5), ("2min", 120), ("3h", 10800), ("0s", 0)],
)
def test_times(text: str, seconds: float) -> None:
    assert units.parse_seconds(text) == pytest.approx(seconds, rel=1e-12)  # 10 * 1e-3 is inexact


@pytest.mark.parametrize("text", ["10", "10 m", "-1ms", "soon", "", "9" * 400 + "s"])
def test_what_is_no_time_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="write it like 10ms"):
        units.parse_seconds(text)


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
    [
        (0.0123, "12 ms"),
        (1.0, "1.0 s"),
        (59.96, "1 min"),
        (185, "3 min 5 s"),
        (3599.4, "59 min 59 s"),
        (3599.5, "1 h"),
        (3937, "1 h 6 min"),
        (7200, "2 h"),
    ],
)
def test_times_are_printed_short(seconds: float, text: str) -> None:
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [("20B", 20 * 10**9), ("1.5 T", 15 * 10**11), ("300k", 300_000), ("131072", 131072)],
)
def test_counts(text: str, count: int) -> None:
    assert units.parse_count(text) == count


@pytest.mark.parametrize("text", ["", "0", "-3", "20GB", "many", "0.2"])
def test_what_is_no_count_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="write it like 20B"):
        units.parse_count(text)


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12"), (131072, "131 k"), (6.738e9, "6.7 B"), (2e16, "20000 T")]
)
def test_counts_are_printed_as_people_say_them(count: float, text: str) -> None:
    assert units.format_count(count) == text


@pytest.mark.parametrize(
    ("usd", "text"),
    [(0, "$0.00"), (0.05, "$0.05"), (9.996, "$10"), (123.4, "$123"), (31_449, "$31,400")],
)
def test_money_has_three_digits(usd: float, text: str) -> None:
    assert units.format_usd(usd) == text


@pytest.mark.parametrize(
    ("days", "text"), [(1.9, "45 h 36 min"), (2, "2 days"), (12.3, "12 days"), (1461, "4 years")]
)
def test_long_times_are_days_and_years(days: float, text: str) -> None:
    assert units.format_seconds(days * 86_400) == text


@pytest.mark.parametrize(
    ("factor", "text"),
    [(1.284, "1.28"), (1.996, "2.0"), (3.72, "3.7"), (33.62, "34"), (1234.5, "1,234")],
)
def test_factors_have_no_more_digits_than_they_are_good_for(factor: float, text: str) -> None:
    assert units.format_factor(factor) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 desktops"), (1, "1 desktop"), (6, "6 desktops"), (1234, "1,234 desktops")],
)
def test_things_are_counted_in_the_singular_and_the_plural(count: int, text: str) -> None:
    assert units.format_number(count, "desktop") == text


def test_rates_are_printed_in_bits_and_arithmetic_in_flops() -> None:
    assert units.format_rate(2.5e6) == "20 Mbit/s"
    assert units.format_flops_per_s(1.02e11) == "102 GFLOP/s"
    assert units.format_flops(6.6e10) == "66 GFLOP"
