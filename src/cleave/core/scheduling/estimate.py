"""Running estimates of a device: its rates from finished tasks, and how late is too late."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from cleave.core.device import DeviceProfile
from cleave.core.matrix import DType

_WEIGHT = 0.2  # of the newest observation
_MIN_FLOPS = 2e7  # shorter tasks measure overhead, not the rate
_MIN_LINK_BYTES = 1 << 18
_LEAST_MEMORY = 1 / 16  # of what a device lends
_CLAMP = 4.0  # one observation moves a rate by this factor at most


class Prediction(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a task was expected to take when it was sent.

    Attributes:
        sent_s: When it was sent.
        finish_s: When its result was expected.
        down_bytes: Bytes that had to travel down.
        up_bytes: Bytes of its result.
        flops: Operations of the task.
        alone: Whether nothing else was in flight on the device.
    """

    sent_s: float
    finish_s: float
    down_bytes: int
    up_bytes: int
    flops: float
    alone: bool


@dataclass(slots=True)
class _Rate:
    now: float
    planned: float


class Estimator:
    """Exponentially weighted rates of one device, and the slack that its own history asks for.

    Attributes:
        profile: What was measured when it joined.
        planned: What plans are made with: the estimates of when they were last renewed.
    """

    def __init__(self, profile: DeviceProfile) -> None:
        """Begin from what was measured when it joined."""
        self.profile = profile
        self.planned = profile
        self._flops_per_s = {
            dtype: _Rate(rate, rate) for dtype, rate in profile.flops_per_s.items()
        }
        self._link = _Rate(1.0, 1.0)  # seconds as a multiple of what the profile says
        self._seen = self._link
        self._lateness = 1.0
        self._deviation = 1.0

    def predict(
        self, dtype: DType, *, down_bytes: int, up_bytes: int, flops: float
    ) -> tuple[float, float]:
        """Seconds on the busiest of link and processor, and seconds from end to end."""
        profile = self.profile
        ratio = self._link.now
        down_s = ratio * down_bytes / profile.downlink_bytes_per_s
        up_s = ratio * up_bytes / profile.uplink_bytes_per_s
        compute_s = flops / self._flops_per_s[dtype].now
        return max(down_s, up_s, compute_s), profile.latency_s + down_s + up_s + compute_s

    def deadline_s(self, sent_s: float, finish_s: float, *, grace_s: float) -> float:
        """When a task is late: its predicted time, stretched by how far off such were."""
        slack = min(10.0, max(2.0, self._lateness + 4.0 * self._deviation))
        return sent_s + slack * (finish_s - sent_s) + grace_s

    def observe(
        self, prediction: Prediction, dtype: DType, *, compute_s: float, now_s: float
    ) -> None:
        """Learn from a finished task."""
        took_s = max(1e-9, now_s - prediction.sent_s)
        expected_s = max(1e-4, prediction.finish_s - prediction.sent_s)
        ratio = min(20.0, took_s / expected_s)
        self._deviation += _WEIGHT * (abs(ratio - self._lateness) - self._deviation)
        self._lateness += _WEIGHT * (ratio - self._lateness)
        rate, link = self._flops_per_s[dtype], self._link
        if prediction.flops >= _MIN_FLOPS and compute_s > 0:
            rate.now = _blend(rate.now, prediction.flops / compute_s)
        if prediction.alone and prediction.down_bytes + prediction.up_bytes >= _MIN_LINK_BYTES:
            link_s = took_s - compute_s - self.profile.latency_s
            planned_s = (
                prediction.down_bytes / self.profile.downlink_bytes_per_s
                + prediction.up_bytes / self.profile.uplink_bytes_per_s
            )
            if link_s > 0:
                link.now = _blend(link.now, link_s / planned_s)
        self._seen = rate

    @property
    def drift(self) -> float:
        """The larger factor by which the link, or the rate seen last, is off what is planned."""
        drift, link_drift = self._seen.now / self._seen.planned, self._link.now / self._link.planned
        return max(drift, 1 / drift, link_drift, 1 / link_drift)

    def renew(self) -> None:
        """Plan with the rates as they are known now."""
        for rate in (self._link, *self._flops_per_s.values()):
            rate.planned = rate.now
        self.planned = replace(
            self.planned,
            flops_per_s={dtype: rate.now for dtype, rate in self._flops_per_s.items()},
            downlink_bytes_per_s=self.profile.downlink_bytes_per_s / self._link.now,
            uplink_bytes_per_s=self.profile.uplink_bytes_per_s / self._link.now,
        )

    def halve_memory(self) -> int:
        """Plan with half the memory from now on: the device has refused more; the bytes left.

        Never with less than a part of what it lends: a device that refuses that little is broken.
        """
        least = max(1, int(self.profile.memory_bytes * _LEAST_MEMORY))
        half = max(least, self.planned.memory_bytes // 2)
        self.planned = replace(self.planned, memory_bytes=half)
        return half


def _blend(old: float, new: float) -> float:
    ratio = new / old
    if ratio > _CLAMP:
        ratio = _CLAMP
    elif ratio < 1 / _CLAMP:
        ratio = 1 / _CLAMP
    return old * (1 - _WEIGHT + _WEIGHT * ratio)
