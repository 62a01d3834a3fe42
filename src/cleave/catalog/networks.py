"""Access links from the table, and which of them a home or a kind of device has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from cleave.catalog.tables import MBIT, Row, find, rows
from cleave.errors import ConfigError

HOME = "home"
RATE_SIGMA = 0.5
"""Standard deviation of the logarithm of a household's rate around its row's median.

A row is the median of many households with contracts of several speeds; the table says nothing of
their spread. 0.5 puts 95 % of them between 0.38 and 2.7 times the median. It is more than what one
phone sees from day to day (0.36: std/mean 0.37 in row ``cn-phone-wifi-flash``) and less than the
0.6 of `cleave.catalog.fleets.log_normal`, which covers all access types at once. An estimate.
"""
_INSIDE_THE_HOUSE = {"wifi-link", "lan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A row of ``networks.csv``, or one drawn around it.

    Attributes:
        name: Of the row.
        access: ``"fibre"``, ``"cable"``, ``"wifi-link"``.
        downlink_bytes_per_s: To the device.
        uplink_bytes_per_s: From the device.
        latency_s: Round trip.
        source: Where the row is from.
        confidence: ``"measured"`` or ``"estimated"``.
    """

    name: str
    access: str
    downlink_bytes_per_s: float
    uplink_bytes_per_s: float
    latency_s: float
    source: str
    confidence: str

    @property
    def is_whole_path(self) -> bool:
        """Whether it reaches the Internet; Wi-Fi and LAN alone end at the home's router."""
        return self.access not in _INSIDE_THE_HOUSE

    def scaled(self, factor: float) -> Link:
        """The same link with rates so many times as high."""
        return replace(
            self,
            downlink_bytes_per_s=self.downlink_bytes_per_s * factor,
            uplink_bytes_per_s=self.uplink_bytes_per_s * factor,
        )

    def behind(self, line: Link) -> Link:
        """This link through another: the lower rates; the latencies add up inside the house."""
        return replace(
            self,
            downlink_bytes_per_s=min(self.downlink_bytes_per_s, line.downlink_bytes_per_s),
            uplink_bytes_per_s=min(self.uplink_bytes_per_s, line.uplink_bytes_per_s),
            latency_s=self.latency_s + (0.0 if self.is_whole_path else line.latency_s),
        )


@cache
def links() -> Mapping[str, Link]:
    """All links of the table by name."""
    return {row["name"]: _read(row) for row in rows("networks")}


def link(name: str) -> Link:
    """A link of the table, by its whole name: ``"lan-gigabit"``.

    Raises:
        ConfigError: If there is no such link.
    """
    return links()[find("link", name, links(), takes_parts=False)]


@cache
def mix(who: str) -> tuple[tuple[Link, ...], tuple[float, ...]]:
    """Links that a kind of device, or `HOME`, may have, and their shares, which add up to 1.

    Raises:
        ConfigError: If there is no mix for it.
    """
    mine = [row for row in rows("link_mixes") if row["who"] == who]
    if not mine:
        raise ConfigError(f"no links are known for {who!r}: use a kind of device or {HOME!r}")
    total = sum(float(row["weight"]) for row in mine)
    shares = tuple(float(row["weight"]) / total for row in mine)
    return tuple(links()[row["link"]] for row in mine), shares


def draw_link(who: str, rng: np.random.Generator) -> Link:
    """A link from the mix of a kind of device, or of a home.

    Both rates of a household's line are scaled by one log-normal factor (`RATE_SIGMA`), as a
    contract sets both. Links inside the house are taken as the table has them.
    """
    known, shares = mix(who)
    drawn = known[int(rng.choice(len(known), p=shares))]
    factor = float(rng.lognormal(0.0, RATE_SIGMA))
    return drawn.scaled(factor) if drawn.is_whole_path else drawn


def _read(row: Row) -> Link:
    return Link(
        name=row["name"],
        access=row["access"],
        downlink_bytes_per_s=float(row["down_mbps"]) * MBIT,
        uplink_bytes_per_s=float(row["up_mbps"]) * MBIT,
        latency_s=float(row["latency_ms"]) / 1e3,
        source=row["source"],
        confidence=row["confidence"],
    )
