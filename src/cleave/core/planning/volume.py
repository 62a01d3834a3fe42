"""What no plan of a product can beat when all three of its axes may be cut."""

from __future__ import annotations

import numpy as np

from cleave.core.planning.bound import first_time_s
from cleave.core.planning.cost import FleetArrays, Floats


def product_bound_s(sizes: tuple[int, int, int], itemsize: int, fleet: FleetArrays) -> float:
    """The time in which no plan can multiply ``(m, k) @ (k, n)``, whatever is cut.

    In a time T a device returns at most a = U T / b elements of (partial) results, and for k'
    steps of the inner axis over an area a it gets at least ``2 sqrt(a) k'`` elements, or more where
    the area is limited by a side. So it does at most a volume ``min(K a, D T a / (b s(a)), F T /
    2)``, with s(a) the least sum of two sides of area a: all three grow with a. Devices of a site
    together do no more than one device with the site's line would, and all devices no more than one
    with the server's, since the volume grows faster than in proportion to the bytes. Memory is not
    counted: strips of the inner axis can be as thin as one likes.

    Args:
        sizes: m, n and k.
        itemsize: Bytes of an element, both ways.
        fleet: The devices, at least one.
    """
    m, n, k = sizes
    volume = float(m) * n * k
    if volume == 0:
        return 0.0

    def within(down: Floats, up: Floats, flops: Floats, copies: Floats | float) -> Floats:
        """Volume of so many bytes down and up and flops; ``copies`` results may be touched."""
        area = np.minimum(up / itemsize, copies * m * n)
        steps = np.minimum(k, down / itemsize / np.maximum(_least_sides(area, m, n), 1e-30))
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
        itemsize * m * n / float(fleet.uplink_bytes_per_s.sum()),
    )
    return first_time_s(done, fleet, start_s * (1 - 1e-9))


def _least_sides(area: Floats, m: int, n: int) -> Floats:
    """The least sum of two sides of a tile of this area, at most m and n; several if it is more."""
    short = min(m, n)
    return np.where(area <= short * short, 2 * np.sqrt(area), short + area / short)
