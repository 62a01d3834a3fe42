"""Running estimates of a device: its rates from finished tasks, and how late is too late."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cleave.core.device import DeviceProfile
from cleave.core.matrix import DType

_WEIGHT = 0.2  # of the newest observation
_MIN_FLOPS = 2e7  # shorter tasks measure overhead, not the rate
_MIN_LINK_BYTES = 1 << 18
_CLAMP = 4.0  # one observation moves a rate by this factor at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
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


class Estimator:
    """Exponentially weighted rates of one device, and the slack that its own history asks for."""

    def __init__(self, profile: DeviceProfile) -> None:
        """Begin from what was measured when it joined."""
        self.profile = profile
        self._flops_per_s = dict(profile.flops_per_s)
        self._link_ratio = 1.0
        self._lateness = 1.0
        self._deviation = 1.0

    def predict(
        self, dtype: DType, *, down_bytes: int, up_bytes: int, flops: float
    ) -> tuple[float, float]:
        """Seconds on the busiest of link and processor, and seconds from end to end."""
        down_s = self._link_ratio * down_bytes / self.profile.downlink_bytes_per_s
        up_s = self._link_ratio * up_bytes / self.profile.uplink_bytes_per_s
        compute_s = flops / self._flops_per_s[dtype]
        return max(down_s, up_s, compute_s), self.profile.latency_s + down_s + up_s + compute_s

    def deadline_s(self, prediction: Prediction, *, grace_s: float) -> float:
        """When the task is late: its predicted time, stretched by how far off such were."""
        slack = min(10.0, max(2.0, self._lateness + 4.0 * self._deviation))
        return prediction.sent_s + slack * (prediction.finish_s - prediction.sent_s) + grace_s

    def observe(
        self, prediction: Prediction, dtype: DType, *, compute_s: float, now_s: float
    ) -> None:
        """Learn from a finished task."""
        took_s = max(1e-9, now_s - prediction.sent_s)
        expected_s = max(1e-4, prediction.finish_s - prediction.sent_s)
        ratio = min(20.0, took_s / expected_s)
        self._deviation += _WEIGHT * (abs(ratio - self._lateness) - self._deviation)
        self._lateness += _WEIGHT * (ratio - self._lateness)
        if prediction.flops >= _MIN_FLOPS and compute_s > 0:
            old = self._flops_per_s[dtype]
            self._flops_per_s[dtype] = _blend(old, prediction.flops / compute_s)
        travelled = prediction.down_bytes + prediction.up_bytes
        if prediction.alone and travelled >= _MIN_LINK_BYTES:
            link_s = took_s - compute_s - self.profile.latency_s
            planned_s = (
                prediction.down_bytes / self.profile.downlink_bytes_per_s
                + prediction.up_bytes / self.profile.uplink_bytes_per_s
            )
            if link_s > 0:
                self._link_ratio = _blend(self._link_ratio, link_s / planned_s)

    def current(self) -> DeviceProfile:
        """The profile with the rates as they are known now."""
        return replace(
            self.profile,
            flops_per_s=dict(self._flops_per_s),
            downlink_bytes_per_s=self.profile.downlink_bytes_per_s / self._link_ratio,
            uplink_bytes_per_s=self.profile.uplink_bytes_per_s / self._link_ratio,
        )

    def moved(self, since: DeviceProfile) -> float:
        """The largest factor by which a rate differs from an older profile; 1 if none does."""
        now = self.current()
        pairs = [
            (now.downlink_bytes_per_s, since.downlink_bytes_per_s),
            *((rate, since.flops_per_s[dtype]) for dtype, rate in now.flops_per_s.items()),
        ]
        return max(max(a / b, b / a) for a, b in pairs)


def _blend(old: float, new: float) -> float:
    new = min(old * _CLAMP, max(old / _CLAMP, new))
    return old + _WEIGHT * (new - old)
