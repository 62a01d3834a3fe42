"""What no plan of products can beat when all three of their axes may be cut."""

from __future__ import annotations

from collections.abc import Sequence

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
    volume = float(sum(m * n * k for m, n, k in sizes))
    if volume == 0:
        return 0.0
    n_results = float(sum(m * n for m, n, _ in sizes))
    short, inner = max(min(m, n) for m, n, _ in sizes), max(k for *_, k in sizes)

    def within(down: Floats, up: Floats, flops: Floats, copies: Floats | float) -> Floats:
        """Volume of so many bytes down and up and flops; ``copies`` results may be touched."""
        area = np.minimum(up / itemsize, copies * n_results)
        sides = np.where(area <= short * short, 2 * np.sqrt(area), short + area / short)
        steps = np.minimum(inner, down / itemsize / np.maximum(sides, 1e-30))
        return np.asarray(np.minimum(area * steps, flops / 2))

    first_s = float(fleet.latency_s.min())
    behind = fleet.site >= 0
    n_sites = len(fleet.site_downlink_bytes_per_s)
    crowd = np.bincount(fleet.site[behind], minlength=n_sites).astype(np.float64)

    def done(times_s: Floats) -> Floats:
        return np.array([share_done(time_s) for time_s in times_s.tolist()])

    def share_done(time_s: float) -> float:
        free_s = np.maximum(time_s - fleet.latency_s, 0.0)
        line_s = max(time_s - first_s, 0.0)
        each = within(
            fleet.downlink_bytes_per_s * free_s,
            fleet.uplink_bytes_per_s * free_s,
            fleet.flops_per_s * free_s,
            1.0,
        )
        total = float(each[~behind].sum())
        if n_sites:
            own = np.bincount(fleet.site[behind], each[behind], minlength=n_sites)
            line = within(
                fleet.site_downlink_bytes_per_s * line_s,
                fleet.site_uplink_bytes_per_s * line_s,
                np.full(n_sites, np.inf),
                crowd,
            )
            total += float(np.minimum(own, line).sum())
        server = within(
            np.array([fleet.egress_bytes_per_s * line_s]),
            np.array([fleet.ingress_bytes_per_s * line_s]),
            np.array([np.inf]),
            float(len(fleet)),
        )
        return min(total, float(server[0])) / volume

    start_s = max(
        2 * volume / float(fleet.flops_per_s.sum()),
        itemsize * n_results / float(fleet.uplink_bytes_per_s.sum()),
    )
    return first_time_s(done, fleet, start_s * (1 - 1e-9))
