"""A device that is wrongly described is refused, and the error names the field."""

import math
import re
from typing import Any

import pytest

from cleave.core.device import Caps, DeviceProfile
from cleave.core.matrix import DType
from cleave.errors import ConfigError

BAD = [0.0, -1.0, math.nan, math.inf]


@pytest.mark.parametrize("value", [*BAD, 1e20])
@pytest.mark.parametrize("field", ["downlink_bytes_per_s", "uplink_bytes_per_s", "memory_bytes"])
def test_a_rate_or_memory_that_is_no_positive_number_or_absurd_is_refused(
    field: str, value: float
) -> None:
    given: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError, match=re.escape(f"device 7: {field} is {value}, expected")):
        DeviceProfile(device_id=7, **given)


@pytest.mark.parametrize("value", [*BAD, 1e20])
def test_a_rate_of_arithmetic_is_refused_with_its_type(value: float) -> None:
    with pytest.raises(ConfigError, match=r"device pc: flops_per_s\[bfloat16\] is"):
        DeviceProfile(device_id=1, name="pc", flops_per_s={DType.BF16: value})


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, 61.0])
def test_a_latency_is_from_0_to_a_minute(value: float) -> None:
    with pytest.raises(ConfigError, match=f"latency_s is {value}, expected 0 to 60"):
        DeviceProfile(device_id=1, latency_s=value)
    assert DeviceProfile(device_id=1, latency_s=0.0).latency_s == 0.0


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("field", Caps.__slots__)
def test_a_cap_that_is_no_positive_number_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"caps: {field} is {value}"):
        Caps(**{field: value})


@pytest.mark.parametrize("value", [24.5, math.inf])
def test_a_day_has_24_hours(value: float) -> None:
    with pytest.raises(ConfigError, match=f"hours_per_day is {value}, expected 24 or less"):
        Caps(hours_per_day=value)


def test_what_an_owner_allows_cuts_the_link_down() -> None:
    caps = Caps(downlink_bytes_per_s=5e6, uplink_bytes_per_s=9e6)
    device = DeviceProfile(device_id=1, downlink_bytes_per_s=8e6, uplink_bytes_per_s=2e6, caps=caps)
    assert (device.downlink_bytes_per_s, device.uplink_bytes_per_s) == (5e6, 2e6)


def test_a_device_runs_what_it_has_ops_and_a_rate_for() -> None:
    device = DeviceProfile(device_id=1, flops_per_s={DType.F32: 1e9}, ops=frozenset({"matmul"}))
    assert device.can_run(frozenset({"matmul"}), DType.F32)
    assert not device.can_run(frozenset({"matmul"}), DType.BF16)
    assert not device.can_run(frozenset({"softmax"}), DType.F32)
