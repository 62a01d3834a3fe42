"""Shares the lines of sites, and the server's, among devices, so that each has a link to itself."""

from __future__ import annotations

import numpy as np

from cleave.core.planning.bound import (
    area_within,
    behind_lines,
    covering,
    least_cost_in_tiles,
    tile_area_limit,
)
from cleave.core.planning.cost import CostForm, FleetArrays, Floats, Ints

_SLIVER = 0.01  # of the average area: for less a device is not bothered
_SMALLEST = 1e-30  # stands for zero where zero would be divided by


def share(form: CostForm, fleet: FleetArrays, sides: tuple[int, int], time_s: float) -> FleetArrays:
    """The devices that take part, each with a link to itself: no sites, no limit of the server.

    A site's line goes to the fewest devices that fill it, as each further tile needs more bytes
    (`behind_lines`), and where the server limits so do its bytes (`covering`). Each device gets as
    much of the line as its tile needs in ``time_s``, and what is left over in proportion.

    What these devices do in some time with the links of a site, those of ``fleet`` can do in the
    same time through its line. The server's limit is met by choosing devices; tiles that are not of
    the cheapest shape may exceed it a little.

    Args:
        form: What a tile costs.
        fleet: With the lines of its sites and of the server.
        sides: Rows and columns of the rectangle.
        time_s: About the makespan to expect: `lower_bound_s`, or a little more.

    Returns:
        Those that take part, in their order.
    """
    if not fleet.shares_lines:
        return fleet
    areas = behind_lines(form, fleet, sides, area_within(form, fleet, *sides, time_s), time_s)
    areas = np.where(areas * np.count_nonzero(areas) < _SLIVER * areas.sum(), 0.0, areas)
    tile = tile_area_limit(form, fleet, *sides)
    down = least_cost_in_tiles(form.down, areas, tile, *sides)
    up = least_cost_in_tiles(form.up, areas, tile, *sides)
    free_s = time_s - float(fleet.latency_s.min())
    if (
        down.sum() > fleet.egress_bytes_per_s * free_s
        or up.sum() > fleet.ingress_bytes_per_s * free_s
    ):
        chosen = covering(form, fleet, sides, areas)[0] > 0
    else:
        chosen = areas > 0
    used = np.flatnonzero(chosen)
    part = fleet.take(used)
    own_s = np.maximum(time_s - part.latency_s, _SMALLEST)
    return part.with_own_lines(
        _of_line(
            part.downlink_bytes_per_s, part.site_downlink_bytes_per_s, part.site, down[used] / own_s
        ),
        _of_line(
            part.uplink_bytes_per_s, part.site_uplink_bytes_per_s, part.site, up[used] / own_s
        ),
    )


def _of_line(own: Floats, lines: Floats, site: Ints, needed: Floats) -> Floats:
    """What each device gets in one direction: of its own link, and of the line in proportion."""
    asked = np.bincount(site[site >= 0], needed[site >= 0], minlength=len(lines))
    ratio = np.append(lines / np.maximum(asked, _SMALLEST), np.inf)  # site -1 is the last
    return np.asarray(np.where(needed > 0, np.minimum(own, needed * ratio[site]), own))
