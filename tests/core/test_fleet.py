"""A fleet, site or server that is wrongly described is refused, and the error names the field."""

import math
from typing import Any

import pytest

from cleave.core.device import DeviceProfile
from cleave.core.fleet import Fleet, Server, Site
from cleave.errors import ConfigError

LINE = Site(site_id=1, name="home", downlink_bytes_per_s=2e6, uplink_bytes_per_s=1e6)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("field", ["downlink_bytes_per_s", "uplink_bytes_per_s"])
def test_a_rate_of_a_site_that_is_no_positive_number_is_refused(field: str, value: float) -> None:
    rates = {"downlink_bytes_per_s": 1.0, "uplink_bytes_per_s": 1.0, field: value}
    with pytest.raises(ConfigError, match=f"site home: {field} is {value}"):
        Site(site_id=1, name="home", **rates)


def test_site_0_is_no_site() -> None:
    with pytest.raises(ConfigError, match="site_id is 0, expected 1 or more"):
        Site(site_id=0, downlink_bytes_per_s=1.0, uplink_bytes_per_s=1.0)


@pytest.mark.parametrize("value", [0, -1, math.nan])
@pytest.mark.parametrize("field", Server.__slots__)
def test_a_value_of_the_server_that_is_not_positive_is_refused(field: str, value: float) -> None:
    given: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError, match=f"server: {field} is {value}"):
        Server(**given)


def test_a_server_sends_what_its_card_and_its_processes_move() -> None:
    assert Server(nic_bytes_per_s=5.0, process_bytes_per_s=2.0).egress_bytes_per_s == 2.0
    assert (
        Server(nic_bytes_per_s=5.0, process_bytes_per_s=2.0, n_processes=3).egress_bytes_per_s
        == 5.0
    )
    assert Server().ingress_bytes_per_s == math.inf


def test_ids_are_used_once() -> None:
    device = DeviceProfile(device_id=4)
    with pytest.raises(ConfigError, match="two devices have the id 4"):
        Fleet((device, DeviceProfile(device_id=5), device))
    with pytest.raises(ConfigError, match="two sites have the id 1"):
        Fleet((device,), (LINE, LINE))


def test_a_device_is_at_a_site_of_its_fleet() -> None:
    device = DeviceProfile(device_id=4, name="pc", site_id=2)
    with pytest.raises(ConfigError, match="device pc: site_id is 2, but the fleet has no such"):
        Fleet((device,), (LINE,))
