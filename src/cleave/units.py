"""Quantities for people: sizes, rates and times are read and printed here, and only here."""

from __future__ import annotations

import re

from cleave.errors import ConfigError

_PREFIXES = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15,
    "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40,
}  # fmt: skip
_NUMBER = r"\s*(\d{1,30}(?:\.\d+)?)\s*"  # more digits would be infinite as a float
_SIZE = re.compile(_NUMBER + r"([kmgt]i?)?b?\s*", re.IGNORECASE)
_TIMES_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(_NUMBER + r"(us|ms|s|min|h)\s*")
_HOUR_S, _DAY_S, _YEAR_S = 3600, 86_400.0, 365.25 * 86_400.0
_FLOPS_PER_S = re.compile(_NUMBER + r"([kmgtp])?flops?(?:\s*/\s*s)?\s*", re.IGNORECASE)
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_COUNT = re.compile(_NUMBER + r"([kmbt])?\s*", re.IGNORECASE)
_RATE = re.compile(_NUMBER + r"([kmgt]i?)?(bit|b)\s*(?:/\s*s|ps)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Bytes of a size: ``"2GB"``, ``"512 MiB"``, ``"1.5g"``, ``"4096"``. A GB is 10^9, a GiB 2^30.

    Raises:
        ConfigError: If it is not a size.
    """
    match = _SIZE.fullmatch(text)
    if not match:
        raise ConfigError(f"{text!r} is not a size: write it like 2GB, 512MiB or 4096")
    return int(float(match[1]) * _PREFIXES[(match[2] or "").lower()])


def parse_rate(text: str) -> float:
    """Bytes per second of a rate: ``"20Mbit/s"``, ``"5 Mbps"``, ``"2MB/s"``; B is bytes, b bits.

    Raises:
        ConfigError: If it is not a rate above zero.
    """
    match = _RATE.fullmatch(text)
    if not match or float(match[1]) <= 0:
        raise ConfigError(f"{text!r} is not a rate: write it like 20Mbit/s or 2MB/s")
    amount = float(match[1]) * _PREFIXES[(match[2] or "").lower()]
    return amount if match[3] == "B" else amount / 8


def parse_flops_per_s(text: str) -> float:
    """Operations per second: ``"2TFLOP/s"``, ``"500 GFLOPS"``; a multiply-add is two.

    Raises:
        ConfigError: If it is not a rate of arithmetic above zero.
    """
    match = _FLOPS_PER_S.fullmatch(text)
    if not match or float(match[1]) <= 0:
        raise ConfigError(f"{text!r} is not a rate of arithmetic: write it like 2TFLOP/s")
    return float(match[1]) * _PREFIXES[(match[2] or "").lower()]


def parse_seconds(text: str) -> float:
    """Seconds of a time: ``"10ms"``, ``"0.5 s"``, ``"2min"``; units are us, ms, s, min and h.

    Raises:
        ConfigError: If it is not a time.
    """
    match = _TIME.fullmatch(text)
    if not match:
        raise ConfigError(f"{text!r} is not a time: write it like 10ms or 0.5s")
    return float(match[1]) * _TIMES_S[match[2]]


def parse_count(text: str) -> int:
    """A whole number: ``"20B"``, ``"1.5 T"``, ``"300k"``, ``"131072"``; a B is 10^9.

    Raises:
        ConfigError: If it is not a number above zero.
    """
    match = _COUNT.fullmatch(text)
    count = round(float(match[1]) * _COUNTS[(match[2] or "").lower()]) if match else 0
    if not count:
        raise ConfigError(f"{text!r} is not a count: write it like 20B, 300k or 131072")
    return count


def format_bytes(n_bytes: float) -> str:
    """A size in the decimal unit that suits it: ``"1.5 MB"``."""
    return _scaled(n_bytes, "B")


def format_rate(bytes_per_s: float) -> str:
    """A rate in bits, as links are sold: ``"20 Mbit/s"``."""
    return _scaled(bytes_per_s * 8, "bit/s")


def format_flops(n_flops: float) -> str:
    """A count of floating-point operations: ``"66 GFLOP"``."""
    return _scaled(n_flops, "FLOP")


def format_flops_per_s(flops_per_s: float) -> str:
    """A rate of arithmetic: ``"100 GFLOP/s"``."""
    return _scaled(flops_per_s, "FLOP/s")


def format_count(count: float) -> str:
    """A large number as people say it: ``"6.7 B"`` for 6.7 * 10^9."""
    return _scaled(count, "", "kMBT").rstrip()


def format_number(count: int, thing: str) -> str:
    """How many of a thing: ``"1 device"``, ``"1,024 devices"``."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def format_factor(factor: float) -> str:
    """How many times: ``"1.28"``, ``"3.7"``, ``"34"``."""
    n_decimals = 2 if factor < 1.995 else 1 if factor < 9.95 else 0
    return f"{factor:,.{n_decimals}f}"


def format_usd(usd: float) -> str:
    """An amount of money: ``"$0.05"``, ``"$12"``, ``"$31,000"``, to three digits at most."""
    if usd < 9.995:
        return f"${usd:.2f}"
    digits = max(0, len(f"{usd:.0f}") - 3)
    return f"${round(usd, -digits):,.0f}"


def format_seconds(seconds: float) -> str:
    """A time: ``"12 ms"``, ``"1.2 s"``, ``"3 min 5 s"``, ``"2 h 8 min"``, ``"12 days"``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if seconds >= 2 * _YEAR_S:
        return f"{format_count(seconds / _YEAR_S)} years"
    if seconds >= 2 * _DAY_S:
        return f"{_short(seconds / _DAY_S)} days"
    large, small, n_small = "min", "s", round(seconds)
    if n_small >= _HOUR_S:
        large, small, n_small = "h", "min", round(seconds / 60)
    n_large, n_small = divmod(n_small, 60)
    return f"{n_large} {large} {n_small} {small}" if n_small else f"{n_large} {large}"


def _scaled(value: float, unit: str, prefixes: str = "kMGTPE") -> str:
    prefix = ""
    for larger in prefixes:
        if value < 999.5:
            break
        value, prefix = value / 1000, larger
    return f"{_short(value)} {prefix}{unit}"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 9.95 else f"{value:.0f}"
