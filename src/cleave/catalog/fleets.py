"""Fleets: equal ones and spread ones for benchmarks, fleets drawn from the tables, and presets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cleave.catalog.availability import hours_per_day
from cleave.catalog.devices import DeviceModel, device_model
from cleave.catalog.mixes import draw_models
from cleave.catalog.networks import HOME, Link, draw_link, link
from cleave.catalog.servers import server
from cleave.catalog.tables import MBIT, find
from cleave.core.device import Caps, DeviceProfile
from cleave.core.fleet import Fleet, Server, Site
from cleave.core.matrix import DType
from cleave.errors import ConfigError

EVERYDAY_MIX = "phones:5,tablets:1,laptops:3,desktops:1"
"""What `from_table` draws: more of what more people have. An estimate."""

DOWN_BYTES_PER_S = 100 * MBIT  # a home's link and a small GPU, as in the published closed forms
UP_BYTES_PER_S = 20 * MBIT
FLOPS_PER_S = 2e12
ROOMY_BYTES = 1 << 50
_FLOPS_SIGMA, _RATE_SIGMA = 0.8, 0.6


def equal(n_devices: int, *, memory_bytes: int = ROOMY_BYTES) -> Fleet:
    """Devices of 2 TFLOP/s in any type at 100/20 Mbit/s, without latency.

    Raises:
        ConfigError: If there is to be no device.
    """
    return _spread(n_devices, np.ones((3, _at_least_one(n_devices))), memory_bytes)


def log_normal(n_devices: int, seed: int = 0, *, memory_bytes: int = ROOMY_BYTES) -> Fleet:
    """Devices spread log-normally around those of `equal`.

    The logarithm's standard deviation is 0.8 for arithmetic and 0.6 for each way of the link.

    Raises:
        ConfigError: If there is to be no device.
    """
    rng = np.random.default_rng(seed)
    sigmas = np.array([[_FLOPS_SIGMA], [_RATE_SIGMA], [_RATE_SIGMA]])
    factors = np.exp(sigmas * rng.standard_normal((3, _at_least_one(n_devices))))
    return _spread(n_devices, factors, memory_bytes)


def from_table(n_devices: int, seed: int = 0, *, home_sizes: Sequence[int] = (1,)) -> Fleet:
    """Devices and links drawn from the tables in `EVERYDAY_MIX`.

    Raises:
        ConfigError: As of `draw`.
    """
    return draw(n_devices, EVERYDAY_MIX, seed, home_sizes=home_sizes)


def draw(
    n_devices: int,
    mix: str,
    seed: int = 0,
    *,
    home_sizes: Sequence[int] = (1,),
    host: Server | None = None,
) -> Fleet:
    """Devices and links drawn from the tables.

    Each is of its row's rate and lends its row's usable memory, for the hours a day that its kind
    is there and idle. Links are drawn by `cleave.catalog.networks.draw_link`.

    Args:
        n_devices: How many.
        mix: Of kinds or devices: ``"phones:3,laptops:1"`` (`cleave.catalog.mixes.parse_mix`).
        seed: Equal seeds give equal fleets.
        home_sizes: Devices that a home may have, all equally likely: ``(2, 3, 4)``. Those of a
            home of several share its line, as a site.
        host: The server; one that limits nothing if it is left out.

    Raises:
        ConfigError: If there is to be no device, the mix cannot be read, or a home has no device.
    """
    if not home_sizes or min(home_sizes) < 1:
        raise ConfigError(f"home_sizes is {tuple(home_sizes)}, expected numbers of 1 or more")
    rng = np.random.default_rng(seed)
    sizes: list[int] = []
    left = _at_least_one(n_devices)
    while left:
        sizes.append(min(left, int(rng.choice(home_sizes))))
        left -= sizes[-1]
    return _homes(sizes, mix, rng, host or Server())


def in_homes(fleet: Fleet, seed: int = 0) -> Fleet:
    """The same devices in homes of 2 to 4, each home's line as fast as its fastest device's link.

    Raises:
        ConfigError: If the fleet has sites already.
    """
    if fleet.sites:
        raise ConfigError(f"the fleet has {len(fleet.sites)} sites already, expected none")
    rng = np.random.default_rng(seed)
    devices: list[DeviceProfile] = []
    sites: list[Site] = []
    while len(devices) < len(fleet.devices):
        first = len(devices)
        home = fleet.devices[first : first + int(rng.integers(2, 5))]
        site = Site(
            site_id=len(sites) + 1,
            downlink_bytes_per_s=max(each.downlink_bytes_per_s for each in home),
            uplink_bytes_per_s=max(each.uplink_bytes_per_s for each in home),
        )
        sites.append(site)
        devices += [replace(each, site_id=site.site_id) for each in home]
    return Fleet(tuple(devices), tuple(sites), fleet.server)


@dataclass(frozen=True, slots=True)
class Preset:
    """A fleet with a name.

    Attributes:
        summary: One line for people.
        build: Makes it.
    """

    summary: str
    build: Callable[[], Fleet]


def preset(name: str) -> Fleet:
    """A fleet for a first look, with its server.

    Raises:
        ConfigError: If there is no such preset.
    """
    return PRESETS[find("preset", name, PRESETS, none="neither a preset nor a file")].build()


def _lab12() -> Fleet:
    models = {
        "Office mini desktop": 4, "Mac mini (M2)": 2, "Gaming laptop": 1,
        "RTX 3060": 3, "Desktop PC, RTX 4070": 1, "RTX 5060 Ti": 1,
    }  # fmt: skip
    return _lan(models, hours_per_day("desktop"), server(nic_gbit_per_s=1, memory_gb=128))


def _school60() -> Fleet:
    models = {"Office mini desktop": 44, "Intel laptop, Iris Xe": 12, "RTX 3060": 4}
    host = server(nic_gbit_per_s=1, memory_gb=256, n_cores=24, n_memory_channels=8)
    return _lan(models, 10.0, host)


def _homes1000() -> Fleet:
    rng = np.random.default_rng(0)
    sizes = rng.choice([1, 2, 3], size=1000, p=[0.75, 0.2, 0.05]).tolist()
    host = server(nic_gbit_per_s=10, memory_gb=512, n_cores=32, n_memory_channels=8, has_tls=True)
    return _homes(sizes, "laptops:2,desktops:1", rng, host)


def _phones8192() -> Fleet:
    host = server(nic_gbit_per_s=25, memory_gb=1024, n_cores=64, n_memory_channels=12, has_tls=True)
    return draw(8192, "phones", host=host)


# What makes up a preset is an assumption: sizes of servers that are for sale, PCs as schools and
# labs have them, one home in four with several devices. The figures of each part are sourced.
PRESETS: Mapping[str, Preset] = {
    "lab12": Preset("12 unequal PCs of a lab and the server on one gigabit switch", _lab12),
    "school60": Preset("60 PCs of a school, 10 hours a night, the server inside", _school60),
    "homes1000": Preset("laptops and desktops of 1,000 homes, over the Internet", _homes1000),
    "phones8192": Preset("8,192 phones on their homes' Wi-Fi, over the Internet", _phones8192),
}


def _at_least_one(n_devices: int) -> int:
    if n_devices < 1:
        raise ConfigError(f"n_devices is {n_devices}, expected 1 or more")
    return n_devices


def _spread(n_devices: int, factors: npt.NDArray[np.float64], memory_bytes: int) -> Fleet:
    medians = np.array([[FLOPS_PER_S], [DOWN_BYTES_PER_S], [UP_BYTES_PER_S]])
    flops, down, up = (medians * factors).tolist()
    return Fleet(
        tuple(
            DeviceProfile(
                device_id=i + 1,  # 0 is the host
                kind="device",
                flops_per_s={DType.F32: flops[i], DType.BF16: flops[i], DType.F16: flops[i]},
                downlink_bytes_per_s=down[i],
                uplink_bytes_per_s=up[i],
                memory_bytes=memory_bytes,
            )
            for i in range(n_devices)
        )
    )


def _homes(sizes: Sequence[int], mix: str, rng: np.random.Generator, host: Server) -> Fleet:
    models = iter(draw_models(mix, sum(sizes), rng))
    devices: list[DeviceProfile] = []
    sites: list[Site] = []
    for size in sizes:
        line = draw_link(HOME, rng)
        if size > 1:
            sites.append(
                Site(
                    site_id=len(sites) + 1,
                    name=line.name,
                    downlink_bytes_per_s=line.downlink_bytes_per_s,
                    uplink_bytes_per_s=line.uplink_bytes_per_s,
                )
            )
        for _ in range(size):
            model = next(models)
            own = draw_link(model.kind, rng)
            # What was measured on a phone at home has its line in it already.
            path = own if own.is_whole_path and size == 1 else own.behind(line)
            site_id = len(sites) if size > 1 else 0
            hours = hours_per_day(model.kind)
            devices.append(_device(len(devices) + 1, model, path, hours, site_id))
    return Fleet(tuple(devices), tuple(sites), host)


def _lan(models: Mapping[str, int], hours: float, host: Server) -> Fleet:
    lan = link("lan-gigabit")
    each = [device_model(name) for name, count in models.items() for _ in range(count)]
    return Fleet(
        tuple(_device(i, model, lan, hours) for i, model in enumerate(each, 1)), server=host
    )


def _device(
    device_id: int, model: DeviceModel, path: Link, hours: float, site_id: int = 0
) -> DeviceProfile:
    return DeviceProfile(
        device_id=device_id,
        name=model.name,
        kind=model.kind,
        flops_per_s=model.flops_per_s,
        downlink_bytes_per_s=path.downlink_bytes_per_s,
        uplink_bytes_per_s=path.uplink_bytes_per_s,
        latency_s=path.latency_s,
        memory_bytes=model.usable_memory_bytes,
        site_id=site_id,
        caps=Caps(hours_per_day=hours),
    )
