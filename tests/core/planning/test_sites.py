"""Lines that several share are given to the devices that make the most of them."""

import numpy as np
import pytest
from tests.core.planning.fleets import arrays, device

from cleave.core.fleet import Server, Site
from cleave.core.planning.bound import area_within, lower_bound_s
from cleave.core.planning.cost import CostForm, FleetArrays
from cleave.core.planning.sites import share

FORM = CostForm(down=(0, 8, 8, 0), up=(0, 0, 0, 1), flops=1, memory=(0, 0, 0, 0))


def shared(fleet: FleetArrays, n_rows: int, n_cols: int) -> FleetArrays:
    time_s = lower_bound_s(FORM, fleet, n_rows, n_cols)
    return share(FORM, fleet, (n_rows, n_cols), time_s)


def test_without_sites_each_keeps_its_own_link() -> None:
    fleet = arrays([device(1), device(2)])
    assert share(FORM, fleet, (10, 10), 1.0) is fleet


def test_one_device_has_the_whole_line_where_it_can_use_it() -> None:
    line = Site(site_id=1, downlink_bytes_per_s=100.0, uplink_bytes_per_s=50.0)
    fleet = shared(arrays([device(1, site_id=1), device(2, site_id=1)], [line]), 20, 20)
    assert fleet.device_id.tolist() == [1]
    assert (fleet.downlink_bytes_per_s[0], fleet.uplink_bytes_per_s[0]) == (100.0, 50.0)
    assert not fleet.shares_lines


def test_a_further_device_takes_part_where_the_first_cannot_fill_the_line() -> None:
    line = Site(site_id=1, downlink_bytes_per_s=1e6, uplink_bytes_per_s=1e6)
    slow = [device(i, flops=10.0, site_id=1) for i in range(3)]
    fleet = shared(arrays(slow, [line]), 20, 20)
    assert fleet.device_id.tolist() == [0, 1, 2]
    # Equal devices: a third of the line each.
    assert np.allclose(fleet.downlink_bytes_per_s, 1e6 / 3)


def test_the_devices_of_a_site_have_no_more_than_its_line_together() -> None:
    line = Site(site_id=3, downlink_bytes_per_s=300.0, uplink_bytes_per_s=40.0)
    mixed = [device(i, flops=20.0 * (i + 1), down=90.0, up=30.0, site_id=3) for i in range(6)]
    fleet = shared(arrays([*mixed, device(9, down=50.0)], [line]), 40, 50)
    behind = fleet.device_id != 9
    assert fleet.downlink_bytes_per_s[behind].sum() <= 300.0 * (1 + 1e-9)
    assert fleet.uplink_bytes_per_s[behind].sum() <= 40.0 * (1 + 1e-9)
    assert (fleet.downlink_bytes_per_s <= 90.0).all()
    assert fleet.downlink_bytes_per_s[~behind].tolist() == [50.0]


@pytest.mark.parametrize("up", [10.0, 30.0, 1e4])
def test_with_their_shares_they_do_in_time_what_the_bound_says(up: float) -> None:
    line = Site(site_id=1, downlink_bytes_per_s=300.0, uplink_bytes_per_s=up)
    behind = [device(i, flops=20.0 * (i + 1), down=90.0, up=30.0, site_id=1) for i in range(6)]
    fleet = arrays([*behind, device(9, down=50.0)], [line])
    time_s = lower_bound_s(FORM, fleet, 40, 50)
    areas = area_within(FORM, share(FORM, fleet, (40, 50), time_s), 40, 50, time_s)
    # The bound is rounded down by up to 2e-4, and areas grow with up to its square.
    assert areas.sum() == pytest.approx(40 * 50, rel=1e-3)


def test_a_slow_server_feeds_the_fewest_devices_that_cover_the_work() -> None:
    # All of 20 x 20 are 320 bytes for one device, 16 s at 20 bytes/s. Each could do that in 0.4 s.
    fleet = shared(
        arrays([device(i) for i in range(5)], server=Server(nic_bytes_per_s=20.0)), 20, 20
    )
    assert len(fleet) == 1
