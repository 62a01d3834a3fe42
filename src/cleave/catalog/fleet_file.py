"""Reads a fleet from a TOML file: ``[server]``, ``[[site]]``, ``[[device]]``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from cleave.catalog.availability import hours_per_day
from cleave.catalog.devices import DeviceModel, device_model, kind_named, typical
from cleave.catalog.networks import link
from cleave.catalog.servers import CORE_FLOPS_PER_S, PROCESS_BYTES_PER_S, TLS_PROCESS_BYTES_PER_S
from cleave.catalog.toml_table import TomlTable
from cleave.core.device import HOURS_PER_DAY, Caps, DeviceProfile
from cleave.core.fleet import Fleet, Server, Site
from cleave.core.matrix import DType
from cleave.errors import ConfigError
from cleave.units import parse_bytes, parse_flops_per_s, parse_rate, parse_seconds

MOST_DEVICES = 100_000
# Beyond these a value is a slip of units; `DeviceProfile` draws the same lines.
_MOST_RATE, _MOST_FLOPS, _MOST_MEMORY, _MOST_LATENCY = "80Tbit/s", "100PFLOP/s", "1024TiB", "1min"


@dataclass(frozen=True, slots=True)
class _Path:
    downlink_bytes_per_s: float
    uplink_bytes_per_s: float
    latency_s: float


def read_fleet(path: str | Path) -> Fleet:
    """The fleet that a file describes; ``examples/fleet.toml`` has every field there is.

    Without ``[server]`` the server limits nothing. A device's rates and memory are those of its
    ``model``, or of the typical device of its ``kind``, where the file does not give them.

    Args:
        path: Of the TOML file.

    Raises:
        ConfigError: If the file cannot be read or a value in it is unusable; it names the file,
            the table, the field, the value, and what to write.
    """
    file = Path(path)
    try:
        root = TomlTable(str(file), msgspec.toml.decode(file.read_bytes(), type=dict))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file}: is no TOML: {error}") from error
    server_table = root.table("server")
    server = _server(server_table) if server_table else Server()
    sites: dict[str, Site] = {}
    site_tables = root.tables("site")
    for i, table in enumerate(site_tables, 1):
        site = _site(table, i)
        if site.name in sites:
            table.refuse("name", "a name that no other site has")
        sites[site.name] = site
    devices: list[DeviceProfile] = []
    for table in root.tables("device"):
        devices += _devices(table, sites, len(devices) + 1)
    root.close()
    if not devices:
        raise ConfigError(f"{file}: has no device: add a table [[device]]")
    used = {device.site_id for device in devices}
    for site, table in zip(sites.values(), site_tables, strict=True):
        if site.site_id not in used:
            table.refuse("name", "the site of a device: say it there, or leave this table out")
    return Fleet(tuple(devices), tuple(sites.values()), server)


def _server(table: TomlTable) -> Server:
    nic = _rate(table, "nic", "10Gbit/s")
    memory = table.quantity("memory", parse_bytes, "512GB", most=_MOST_MEMORY)
    bandwidth = _rate(table, "memory_bandwidth", "200GB/s")
    n_cores = table.count("cores", most=4096)
    has_tls = table.flag("tls")
    n_processes = table.count("processes", most=1024)
    table.close()
    return Server(
        nic_bytes_per_s=nic or math.inf,
        process_bytes_per_s=TLS_PROCESS_BYTES_PER_S if has_tls else PROCESS_BYTES_PER_S,
        n_processes=n_processes or 1,
        memory_bytes=memory or math.inf,
        memory_bytes_per_s=bandwidth or math.inf,
        flops_per_s=n_cores * CORE_FLOPS_PER_S if n_cores else math.inf,
    )


def _site(table: TomlTable, site_id: int) -> Site:
    name = table.text("name", "lab") or table.refuse("name", 'a text like "lab"')
    down = _rate(table, "down", "200Mbit/s") or table.refuse("down", 'a text like "200Mbit/s"')
    up = _rate(table, "up", "20Mbit/s") or table.refuse("up", 'a text like "20Mbit/s"')
    table.close()
    return Site(site_id=site_id, name=name, downlink_bytes_per_s=down, uplink_bytes_per_s=up)


def _devices(table: TomlTable, sites: Mapping[str, Site], first_id: int) -> list[DeviceProfile]:
    count = table.count("count", most=MOST_DEVICES) or 1
    if first_id - 1 + count > MOST_DEVICES:
        table.refuse("count", f"at most {MOST_DEVICES} devices in the whole fleet")
    model, kind = _model_and_kind(table)
    flops = _flops(table) or (model and model.flops_per_s)
    if not flops:
        table.refuse("model", 'a device of the table, or kind = "laptop", or flops = "2TFLOP/s"')
    memory = table.quantity("memory", parse_bytes, "8GB", most=_MOST_MEMORY)
    if not memory and model is None:
        table.refuse("memory", 'what its owner lends, like "8GB", as no model says it')
    site_name = table.choice("site", sites)
    site = sites[site_name] if site_name else None
    path = _path(table, site)
    caps = _caps(table, kind)
    name = table.text("name", "office PC") or (model.name if model else kind)
    table.close()
    profile = DeviceProfile(
        device_id=first_id,
        name=name,
        kind=kind,
        flops_per_s=flops,
        downlink_bytes_per_s=path.downlink_bytes_per_s,
        uplink_bytes_per_s=path.uplink_bytes_per_s,
        latency_s=path.latency_s,
        memory_bytes=int(memory or (model.usable_memory_bytes if model else 0)),
        site_id=site.site_id if site else 0,
        caps=caps,
    )
    return [replace(profile, device_id=first_id + i) for i in range(count)]


def _model_and_kind(table: TomlTable) -> tuple[DeviceModel | None, str]:
    name, kind = table.text("model", "RTX 3060"), table.text("kind", "laptop")
    if name:
        try:
            model = device_model(name)
        except ConfigError as error:
            raise ConfigError(f"{table.where}: model: {error}") from error
        return model, kind or model.kind
    if kind and not table.has("flops"):
        try:
            model = typical(kind)
        except ConfigError as error:
            raise ConfigError(f"{table.where}: kind: {error}; or give flops and memory") from error
        return model, model.kind
    return None, kind or "device"


def _flops(table: TomlTable) -> Mapping[DType, float] | None:
    f32 = table.quantity("flops", parse_flops_per_s, "2TFLOP/s", most=_MOST_FLOPS)
    f16 = table.quantity("flops_16bit", parse_flops_per_s, "4TFLOP/s", most=_MOST_FLOPS)
    if f32 is None:
        return None if f16 is None else table.refuse("flops", "the rate in fp32 beside flops_16bit")
    return {DType.F32: f32, DType.BF16: f16 or f32, DType.F16: f16 or f32}


def _path(table: TomlTable, site: Site | None) -> _Path:
    row = table.text("link", "lan-gigabit")
    try:
        base = link(row) if row else None
    except ConfigError as error:
        raise ConfigError(f"{table.where}: link: {error}") from error
    known = base or site
    down = _rate(table, "down", "100Mbit/s") or (known.downlink_bytes_per_s if known else None)
    up = _rate(table, "up", "20Mbit/s") or (known.uplink_bytes_per_s if known else None)
    latency = table.quantity("latency", parse_seconds, "10ms", most=_MOST_LATENCY, may_be_zero=True)
    if latency is None:
        latency = base.latency_s if base else 0.0
    hint = ', or link = "lan-gigabit", or a site'
    return _Path(
        down or table.refuse("down", f'a text like "100Mbit/s"{hint}'),
        up or table.refuse("up", f'a text like "20Mbit/s"{hint}'),
        latency,
    )


def _caps(table: TomlTable, kind: str) -> Caps:
    hours = table.number("hours_per_day", "6", most=HOURS_PER_DAY)
    if not hours:
        hours = hours_per_day(kind) if kind_named(kind) else HOURS_PER_DAY
    return Caps(
        downlink_bytes_per_s=_rate(table, "limit_down", "20Mbit/s") or math.inf,
        uplink_bytes_per_s=_rate(table, "limit_up", "5Mbit/s") or math.inf,
        bytes_per_month=(table.number("gb_per_month", "300", most=1e7) or math.inf) * 1e9,
        hours_per_day=hours,
    )


def _rate(table: TomlTable, key: str, example: str) -> float | None:
    return table.quantity(key, parse_rate, example, most=_MOST_RATE)
