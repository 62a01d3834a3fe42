"""Devices that people own, from the table: what they compute, hold and lend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from cleave.catalog.tables import Row, find, rows
from cleave.core.matrix import DType
from cleave.errors import ConfigError

KINDS = ("phone", "tablet", "laptop", "desktop", "sbc", "console")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """A row of ``devices.csv``.

    Attributes:
        name: As sold.
        kind: One of `KINDS`.
        peak_f32_flops_per_s: Of the processor that the row is about, in fp32.
        peak_f16_flops_per_s: The same in fp16.
        has_fast_f16: Whether that peak is a GPU's. PyTorch's fp16 products on a CPU are 40 to 100
            times slower than those in fp32, whatever its vector units could do.
        sustained_share: Of the peak, by a warm device that multiplies matrices for hours.
        usable_memory_bytes: What its owner can lend beside all else that runs.
        source: Where the row is from.
        confidence: ``"measured"``, ``"vendor"`` or ``"estimated"``.
    """

    name: str
    kind: str
    peak_f32_flops_per_s: float
    peak_f16_flops_per_s: float
    has_fast_f16: bool
    sustained_share: float
    usable_memory_bytes: int
    source: str
    confidence: str

    @property
    def flops_per_s(self) -> Mapping[DType, float]:
        """Sustained rate by the element type that travels.

        A device computes in its fastest safe type, whatever type travels: two-byte elements (bf16
        and fp16) count at the fp16 rate of a GPU that has one, and at the fp32 rate elsewhere.
        Where the table knows fp16 alone, a GPU's bf16 is taken to be as fast.
        """
        f32 = self.peak_f32_flops_per_s * self.sustained_share
        f16 = self.peak_f16_flops_per_s * self.sustained_share if self.has_fast_f16 else f32
        return {DType.F32: f32, DType.BF16: max(f16, f32), DType.F16: max(f16, f32)}


@cache
def device_models() -> Mapping[str, DeviceModel]:
    """All devices of the table by name."""
    return {row["name"]: _read(row) for row in rows("devices")}


def device_model(name: str) -> DeviceModel:
    """A device of the table, by its name or a part of it: ``"RTX 3060"``.

    Raises:
        ConfigError: If there is no such device, or several.
    """
    models = device_models()
    return models[find("device", name, models)]


def of_kind(kind: str) -> tuple[DeviceModel, ...]:
    """The table's devices of a kind: ``"phone"`` or ``"phones"``.

    Raises:
        ConfigError: If there is no such kind.
    """
    singular = kind_named(kind)
    if singular is None:
        raise ConfigError(f"{kind!r} is no kind of device: the kinds are {', '.join(KINDS)}")
    return tuple(each for each in device_models().values() if each.kind == singular)


def kind_named(text: str) -> str | None:
    """The kind that a text names, in the singular or the plural; None if it names none."""
    singular = text.strip().casefold().removesuffix("s")
    return singular if singular in KINDS else None


def typical(kind: str) -> DeviceModel:
    """The middle one of the table's devices of a kind, by sustained fp32 rate.

    The table has more gaming PCs than offices have: name the device where that matters.

    Raises:
        ConfigError: If there is no such kind.
    """
    by_rate = sorted(of_kind(kind), key=lambda each: each.flops_per_s[DType.F32])
    return by_rate[len(by_rate) // 2]


def _read(row: Row) -> DeviceModel:
    return DeviceModel(
        name=row["name"],
        kind=row["class"],
        peak_f32_flops_per_s=float(row["peak_fp32_gflops"]) * 1e9,
        peak_f16_flops_per_s=float(row["peak_fp16_gflops"]) * 1e9,
        has_fast_f16=row["processor"] == "gpu",
        sustained_share=float(row["sustained_fraction"]),
        usable_memory_bytes=int(float(row["usable_memory_gb"]) * 1e9),
        source=row["source"],
        confidence=row["confidence"],
    )
