"""GPUs to rent: what a fleet is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from cleave.catalog.tables import Row, find, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A row of ``gpus.csv``.

    Attributes:
        name: With its memory: ``"A100 80GB SXM4"``.
        peak_flops_per_s: In bf16, dense; in fp16 for those older than bf16.
        mfu: Model flops utilisation: the share of the peak that training reaches.
        memory_bytes: Of one GPU.
        usd_per_hour: What one costs to rent.
        low_usd_per_hour: The least that was asked for.
        high_usd_per_hour: The most.
        price_year: When.
        source: Where the row is from.
        confidence: ``"vendor"`` or ``"estimated"``.
    """

    name: str
    peak_flops_per_s: float
    mfu: float
    memory_bytes: int
    usd_per_hour: float
    low_usd_per_hour: float
    high_usd_per_hour: float
    price_year: int
    source: str
    confidence: str

    @property
    def sustained_flops_per_s(self) -> float:
        """What training gets out of one: its peak times its utilisation."""
        return self.peak_flops_per_s * self.mfu


@cache
def gpus() -> Mapping[str, Gpu]:
    """All GPUs of the table by name."""
    return {row["name"]: _read(row) for row in rows("gpus")}


def gpu(name: str) -> Gpu:
    """A GPU of the table, by its name or a part of it: ``"A100 80GB"``.

    Raises:
        ConfigError: If there is no such GPU, or several.
    """
    return gpus()[find("GPU", name, gpus())]


def _read(row: Row) -> Gpu:
    return Gpu(
        name=row["name"],
        peak_flops_per_s=float(row["peak_bf16_tflops"]) * 1e12,
        mfu=float(row["typical_mfu"]),
        memory_bytes=int(float(row["memory_gb"]) * 1e9),
        usd_per_hour=float(row["price_usd_per_h"]),
        low_usd_per_hour=float(row["price_low"]),
        high_usd_per_hour=float(row["price_high"]),
        price_year=int(row["price_year"]),
        source=row["source"],
        confidence=row["confidence"],
    )
