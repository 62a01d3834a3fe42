"""Quantities for people: sizes, rates and times are read and printed here, and only here."""

from __future__ import annotations

import re

from cleave.errors import ConfigError

_PREFIXES = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40,
}  # fmt: skip
_NUMBER = r"\s*(\d+(?:\.\d+)?)\s*"
_SIZE = re.compile(_NUMBER + r"([kmgt]i?)?b?\s*", re.IGNORECASE)
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


def format_seconds(seconds: float) -> str:
    """A time: ``"12 ms"``, ``"1.2 s"``, ``"3:05"``, ``"2:00:00"``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"


def _scaled(value: float, unit: str) -> str:
    prefixes = iter("kMGTPE")
    prefix = ""
    while value >= 999.5:
        value, prefix = value / 1000, next(prefixes)
    number = f"{value:.1f}".removesuffix(".0") if value < 9.95 else f"{value:.0f}"
    return f"{number} {prefix}{unit}"
