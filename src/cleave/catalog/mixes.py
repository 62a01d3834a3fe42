"""Mixes of devices as people write them: ``"phones:3,laptops:1"``."""

from __future__ import annotations

import math

import numpy as np

from cleave.catalog.devices import KINDS, DeviceModel, device_model, kind_named, of_kind
from cleave.errors import ConfigError


def parse_mix(text: str) -> tuple[tuple[tuple[DeviceModel, ...], float], ...]:
    """Groups of devices to draw from, each with its share; the shares add up to 1.

    Args:
        text: Parts with commas between them. A part is a kind (``phones``: all of the table's
            phones are equally likely) or a device's name or a part of it (``RTX 3060``), each
            with a weight after a colon if it is not 1.

    Raises:
        ConfigError: If a part is neither, is meant by several devices, or has no weight above 0.
    """
    parts = [_part(part) for part in text.split(",")]
    total = sum(weight for _, weight in parts)
    return tuple((models, weight / total) for models, weight in parts)


def draw_models(text: str, n_devices: int, rng: np.random.Generator) -> list[DeviceModel]:
    """Devices drawn from a mix, each for itself.

    Raises:
        ConfigError: As of `parse_mix`.
    """
    groups = parse_mix(text)
    which = rng.choice(len(groups), size=n_devices, p=[share for _, share in groups])
    place = rng.random(n_devices)
    return [
        groups[group][0][int(where * len(groups[group][0]))]
        for group, where in zip(which.tolist(), place.tolist(), strict=True)
    ]


def _part(text: str) -> tuple[tuple[DeviceModel, ...], float]:
    name, colon, number = text.rpartition(":")
    if not colon:
        name, number = text, "1"
    if not name.strip():
        raise ConfigError(f"mix: {text!r} names no device: write it like phones:3,laptops:1")
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise ConfigError(
            f"mix: the weight of {name.strip()!r} is {number!r}, expected a number above 0: "
            "write it like phones:3,laptops:1"
        )
    if kind_named(name):
        return of_kind(name), weight
    try:
        return (device_model(name),), weight
    except ConfigError as error:
        raise ConfigError(f"mix: {error}; kinds are {', '.join(KINDS)}") from error
