"""A fleet: devices, the links that some of them share, and the server that feeds them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cleave.core.checks import require_positive
from cleave.core.device import DeviceProfile
from cleave.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An access link or access point that the devices behind it share.

    Attributes:
        site_id: 1 or more; `DeviceProfile.site_id` refers to it.
        name: For people.
        downlink_bytes_per_s: Server to all its devices together.
        uplink_bytes_per_s: All its devices together to the server.

    Raises:
        ConfigError: If a rate is not above zero; it names the field.
    """

    site_id: int
    name: str = ""
    downlink_bytes_per_s: float
    uplink_bytes_per_s: float

    def __post_init__(self) -> None:
        """Refuse what would poison a plan."""
        who = f"site {self.name or self.site_id}"
        if self.site_id < 1:
            raise ConfigError(f"{who}: site_id is {self.site_id}, expected 1 or more")
        for name in ("downlink_bytes_per_s", "uplink_bytes_per_s"):
            require_positive(who, name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The machine that holds the weights and feeds the devices. By default it limits nothing.

    Attributes:
        nic_bytes_per_s: Its network card, each way.
        process_bytes_per_s: What one server process moves each way (less with TLS).
        n_processes: Server processes.
        memory_bytes: For weights, gradients, optimiser and activations.
        memory_bytes_per_s: Bandwidth of that memory, for norms, sums and the optimiser.
        flops_per_s: Its own arithmetic, for what stays on the host.

    Raises:
        ConfigError: If a value is not above zero; it names the field.
    """

    nic_bytes_per_s: float = math.inf
    process_bytes_per_s: float = math.inf
    n_processes: int = 1
    memory_bytes: float = math.inf
    memory_bytes_per_s: float = math.inf
    flops_per_s: float = math.inf

    def __post_init__(self) -> None:
        """Refuse what would poison a plan."""
        for name in self.__slots__:
            require_positive("server", name, getattr(self, name), may_be_infinite=True)

    @property
    def egress_bytes_per_s(self) -> float:
        """What it can send to all devices together."""
        return min(self.nic_bytes_per_s, self.process_bytes_per_s * self.n_processes)

    @property
    def ingress_bytes_per_s(self) -> float:
        """What it can receive from all devices together."""
        return self.egress_bytes_per_s


@dataclass(frozen=True, slots=True)
class Fleet:
    """Devices, the sites that some of them are behind, and the server.

    Raises:
        ConfigError: If two devices or two sites have the same id, or a device names a site that
            is not there.
    """

    devices: tuple[DeviceProfile, ...]
    sites: tuple[Site, ...] = ()
    server: Server = Server()

    def __post_init__(self) -> None:
        """Refuse what would poison a plan."""
        _require_distinct("device", [device.device_id for device in self.devices])
        _require_distinct("site", [site.site_id for site in self.sites])
        known = {0, *(site.site_id for site in self.sites)}
        for device in self.devices:
            if device.site_id not in known:
                raise ConfigError(
                    f"device {device.name or device.device_id}: site_id is {device.site_id}, "
                    f"but the fleet has no such site: add it, or use 0 for a link of its own"
                )


def _require_distinct(what: str, ids: Sequence[int]) -> None:
    if len(set(ids)) < len(ids):
        twice = next(each for i, each in enumerate(ids) if each in ids[:i])
        raise ConfigError(f"two {what}s have the id {twice}: give each its own")
