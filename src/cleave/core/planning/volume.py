"""What no plan of products can beat when all three of their axes may be cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cleave.core.planning.bound import first_time_s
from cleave.core.planning.cost import FleetArrays, Floats


def product_bound_s(
    sizes: Sequence[tuple[int, int, int]], itemsize: int, fleet: FleetArrays
) -> float:
    """The time in which no plan can do products ``(m, k) @ (k, n)`` at once, whatever is cut.

    In a time T a device returns at most a = U T / b elements of (partial) results, and for k'
    steps of the inner axis over an area a it gets at least ``2 sqrt(a) k'`` elements, or more where
    the area is limited by a side. So it does at most a volume ``min(K a, D T a / (b s(a)), F T /
    2)``, with s(a) the least sum of two sides of area a: all three grow with a. This volume grows
    faster than in proportion to the bytes, so that devices of a site do no more together than one
    device with the site's line would, and all devices no more than one with the server's; and a
    device does no more of several products than of a single one with the longest sides and inner
    axis of any. Memory is not counted: strips of the inner axis can be as thin as one likes.

    Args:
        sizes: m, n and k of each.
        itemsize: Bytes of an element, both ways.
        fleet: The devices, at least one.
    """
    products = _Products.of(sizes, itemsize)
    if products.volume == 0:
        return 0.0
    start_s = max(
        2 * products.volume / float(fleet.flops_per_s.sum()),
        itemsize * products.n_results / float(fleet.uplink_bytes_per_s.sum()),
    )

    def done(times_s: Floats) -> Floats:
        shares = [_volume(products, fleet, time_s) / products.volume for time_s in times_s.tolist()]
        return np.array(shares)

    return first_time_s(done, fleet, start_s * (1 - 1e-9))


@dataclass(frozen=True, slots=True)
class _Products:
    """What counts of products done at once.

    Attributes:
        volume: Multiplications.
        n_results: Elements of all results.
        short: The longest of the shorter sides of results.
        inner: The longest inner axis.
        itemsize: Bytes of an element.
    """

    volume: float
    n_results: float
    short: int
    inner: int
    itemsize: int

    @classmethod
    def of(cls, sizes: Sequence[tuple[int, int, int]], itemsize: int) -> _Products:
        """Those of ``(m, k) @ (k, n)`` with sizes m, n and k."""
        return cls(
            volume=float(sum(m * n * k for m, n, k in sizes)),
            n_results=float(sum(m * n for m, n, _ in sizes)),
            short=max((min(m, n) for m, n, _ in sizes), default=0),
            inner=max((k for *_, k in sizes), default=0),
            itemsize=itemsize,
        )

    def within(self, down: Floats, up: Floats, flops: Floats, copies: Floats | float) -> Floats:
        """Volume of so many bytes down and up and flops; ``copies`` results may be touched."""
        area = np.minimum(up / self.itemsize, copies * self.n_results)
        is_square = area <= self.short * self.short
        sides = np.where(is_square, 2 * np.sqrt(area), self.short + area / self.short)
        steps = np.minimum(self.inner, down / self.itemsize / np.maximum(sides, 1e-30))
        return np.asarray(np.minimum(area * steps, flops / 2))


def _volume(products: _Products, fleet: FleetArrays, time_s: float) -> float:
    """What the devices can do in a time, behind their lines and the server's."""
    free_s = np.maximum(time_s - fleet.latency_s, 0.0)
    line_s = max(time_s - float(fleet.latency_s.min()), 0.0)
    each = products.within(
        fleet.downlink_bytes_per_s * free_s,
        fleet.uplink_bytes_per_s * free_s,
        fleet.flops_per_s * free_s,
        1.0,
    )
    behind = fleet.site >= 0
    n_sites = len(fleet.site_downlink_bytes_per_s)
    total = float(each[~behind].sum())
    if n_sites:
        crowd = np.bincount(fleet.site[behind], minlength=n_sites).astype(np.float64)
        own = np.bincount(fleet.site[behind], each[behind], minlength=n_sites)
        line = products.within(
            fleet.site_downlink_bytes_per_s * line_s,
            fleet.site_uplink_bytes_per_s * line_s,
            np.full(n_sites, np.inf),
            crowd,
        )
        total += float(np.minimum(own, line).sum())
    server = products.within(
        np.array([fleet.egress_bytes_per_s * line_s]),
        np.array([fleet.ingress_bytes_per_s * line_s]),
        np.array([np.inf]),
        float(len(fleet)),
    )
    return min(total, float(server[0]))
