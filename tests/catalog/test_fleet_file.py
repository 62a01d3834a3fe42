"""A fleet is read from a file, and what is wrong in it is named with what to write."""

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cleave.catalog.fleet_file import read_fleet
from cleave.catalog.servers import TLS_PROCESS_BYTES_PER_S
from cleave.core.fleet import Fleet, Server
from cleave.core.matrix import DType
from cleave.errors import ConfigError

EXAMPLE = Path(__file__).parents[2] / "examples" / "fleet.toml"
PC = '[[device]]\nflops = "1TFLOP/s"\nmemory = "8GB"\ndown = "100Mbit/s"\nup = "20Mbit/s"\n'


def read(folder: Path, text: str) -> Fleet:
    file = folder / "fleet.toml"
    file.write_text(text, encoding="utf-8")
    return read_fleet(file)


def test_the_example_is_read() -> None:
    fleet = read_fleet(EXAMPLE)
    assert [device.device_id for device in fleet.devices] == list(range(1, 8))
    assert [device.kind for device in fleet.devices] == (
        ["desktop"] * 4 + ["laptop"] * 2 + ["workstation"]
    )
    (home,) = fleet.sites
    assert (home.downlink_bytes_per_s, home.uplink_bytes_per_s) == (25e6, 2.5e6)
    desktop, laptop, machine = fleet.devices[0], fleet.devices[4], fleet.devices[6]
    assert desktop.uplink_bytes_per_s == 940e6 / 8  # lan-gigabit
    assert desktop.caps.hours_per_day == 10
    assert laptop.site_id == home.site_id
    assert laptop.downlink_bytes_per_s == 150e6 / 8
    assert laptop.uplink_bytes_per_s == home.uplink_bytes_per_s
    assert laptop.caps.bytes_per_month == 300e9
    assert laptop.caps.hours_per_day == 6  # what is known of laptops
    assert machine.flops_per_s == {DType.F32: 20e12, DType.BF16: 40e12, DType.F16: 40e12}
    assert machine.downlink_bytes_per_s == 500e6 / 8  # of 1 Gbit/s, what its owner allows
    assert fleet.server == Server(
        nic_bytes_per_s=1.25e9,
        process_bytes_per_s=TLS_PROCESS_BYTES_PER_S,
        memory_bytes=512e9,
        memory_bytes_per_s=200e9,
        flops_per_s=32e11,
    )


@pytest.mark.parametrize("table", ["server", "site", "device"])
def test_the_example_has_every_field(table: str, tmp_path: Path) -> None:
    example = msgspec.toml.decode(EXAMPLE.read_bytes())[table]
    tables = [example] if table == "server" else example
    shown = sorted({field for each in tables for field in each})
    fields = {"site": "name = 'a'\ndown = '1MB/s'\nup = '1MB/s'\n", "server": ""}
    header = f"[{table}]\n" if table == "server" else f"[[{table}]]\n"
    text = PC if table == "device" else header + fields[table]
    with pytest.raises(ConfigError, match=f"zzz is no field of it: it has {', '.join(shown)}$"):
        read(tmp_path, text + "zzz = 1\n")


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    fleet = read(tmp_path, PC)
    assert fleet.server == Server()
    (device,) = fleet.devices
    assert device.kind == "device"
    assert device.latency_s == 0
    assert device.caps.hours_per_day == 24
    assert device.flops_per_s[DType.BF16] == 1e12
    assert device.site_id == 0


def test_a_server_without_a_card_has_its_process_alone(tmp_path: Path) -> None:
    server = read(tmp_path, "[server]\nprocesses = 2\n" + PC).server
    assert server.egress_bytes_per_s == 4.8e9
    assert server.memory_bytes == math.inf


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("down = ", "fleet.toml: is no TOML: Invalid value"),
        ("", r"fleet.toml: has no device: add a table \[\[device\]\]"),
        ("[device]\ncount = 1\n", r"fleet.toml: device is .*, expected tables \[\[device\]\] with"),
        ("server = 3\n" + PC, r"fleet.toml: server is 3, expected a table \[server\]"),
        ("[serve]\n" + PC, "fleet.toml: serve is no field of it: did you mean server"),
        ("[[site]]\nname = 'a'\n" + PC, r"fleet.toml: \[\[site\]\] 1: down is missing, expected"),
        (
            2 * "[[site]]\nname = 'a'\ndown = '1MB/s'\nup = '1MB/s'\n" + PC,
            r"\[\[site\]\] 2: name is 'a', expected a name that no other site has",
        ),
        (
            "[server]\nnic = 10\n" + PC,
            r'\[server\]: nic is 10, expected a text like "10Gbit/s"',
        ),
        ("[server]\nnic = '0bit/s'\n" + PC, r"\[server\]: nic: '0bit/s' is not a rate: write it"),
        (
            "[server]\nnic = '900Tbit/s'\n" + PC,
            r'nic is \'900Tbit/s\', expected a text like "10Gbit/s", above 0 and at most 80Tbit/s',
        ),
        ("[server]\nmemory = '0GB'\n" + PC, r"\[server\]: memory is '0GB', expected .* above 0"),
        ("[server]\nmemory = '-1GB'\n" + PC, r"memory: '-1GB' is not a size: write it like 2GB"),
        ("[server]\ntls = 'yes'\n" + PC, r"\[server\]: tls is 'yes', expected true or false"),
        ("[server]\nprocesses = 0\n" + PC, "processes is 0, expected a whole number from 1 to"),
        ("[server]\ncores = 1.5\n" + PC, "cores is 1.5, expected a whole number from 1 to 4096"),
        ("[server]\nnics = '1Gbit/s'\n" + PC, "nics is no field of it: did you mean nic$"),
    ],
)
def test_what_is_wrong_with_the_file_its_server_or_sites(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("count = 0", "count is 0, expected a whole number from 1 to 100000"),
        ("count = 100001", "count is 100001, expected"),
        ("count = 100000", "count is 100000, expected at most 100000 devices in the whole fleet"),
        ("count = true", "count is True, expected a whole number"),
        ("count = '4'", "count is '4', expected a whole number"),
        ("down = 100", 'down is 100, expected a text like "100Mbit/s"'),
        ("down = ''", "down is '', expected a text like"),
        ("down = 'fast'", "down: 'fast' is not a rate: write it like 20Mbit/s"),
        ("up = '-1Mbit/s'", "up: '-1Mbit/s' is not a rate"),
        ("up = '900Tbit/s'", r"up is '900Tbit/s', expected .* at most 80Tbit/s"),
        ("latency = '10'", "latency: '10' is not a time: write it like 10ms"),
        (
            "latency = '2h'",
            "latency is '2h', expected a text like \"10ms\", 0 or more and at most 1min",
        ),
        ("memory = '0'", "memory is '0', expected a text like \"8GB\", above 0"),
        ("memory = '9000TB'", "memory is '9000TB', expected"),
        ("flops = '2T'", "flops: '2T' is not a rate of arithmetic: write it like 2TFLOP/s"),
        ("flops = '900PFLOP/s'", r"flops is '900PFLOP/s', expected .* at most 100PFLOP/s"),
        ("flops_16bit = nan", "flops_16bit is nan, expected a text like"),
        ("model = 'RTX'", "model: 'RTX' is more than one device: did you mean Gaming laptop"),
        ("link = 'lann'", "link: 'lann' is no link"),
        ("link = 'lan'", "link: 'lan' is no link: did you mean lan-gigabit"),
        ("site = 'lab'", "site is 'lab', expected none: there are none"),
        ("gb_per_month = 0", "gb_per_month is 0, expected a number like 300, above 0"),
        ("gb_per_month = nan", "gb_per_month is nan, expected a number"),
        ("gb_per_month = inf", "gb_per_month is inf, expected a number"),
        ("gb_per_month = '300'", "gb_per_month is '300', expected a number"),
        ("hours_per_day = 25", "hours_per_day is 25, expected a number like 6, above 0 and at mo"),
        ("limit_down = '0Mbit/s'", "limit_down: '0Mbit/s' is not a rate"),
        ("limit_up = 5", "limit_up is 5, expected a text"),
        ("name = 3", 'name is 3, expected a text like "office PC"'),
        ("kind = []", r'kind is \[\], expected a text like "laptop"'),
        ("memroy = '8GB'", "memroy is no field of it: did you mean memory"),
        ("zzz = 1", "zzz is no field of it: it has count, down, flops"),
    ],
)
def test_what_is_wrong_with_a_device(tmp_path: Path, fields: str, message: str) -> None:
    key = fields.split(" ")[0]
    rest = "\n".join(line for line in PC.splitlines() if not line.startswith(f"{key} "))
    with pytest.raises(ConfigError, match=rf"fleet.toml: \[\[device\]\] 2: {message}"):
        read(tmp_path, f"{PC}{rest}\n{fields}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 'pc'", "model is missing, expected a device of the table"),
        ("flops = '1TFLOP/s'", "memory is missing, expected what its owner lends"),
        ("flops_16bit = '1TFLOP/s'", "flops is missing, expected the rate in fp32 beside"),
        ("kind = 'fridge'", "kind: 'fridge' is no kind of device: .* or give flops and memory"),
        ("kind = 'laptop'", "down is missing, expected .*or link = "),
        ("kind = 'laptop'\ndown = '1MB/s'", "up is missing, expected"),
    ],
)
def test_what_a_device_cannot_do_without(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"\[\[device\]\] 1: {message}"):
        read(tmp_path, f"[[device]]\n{text}\n")


def test_the_largest_values_are_those_that_a_device_may_have(tmp_path: Path) -> None:
    text = (
        '[[device]]\nflops = "100PFLOP/s"\nmemory = "1024TiB"\n'
        'down = "80Tbit/s"\nup = "80Tbit/s"\nlatency = "1min"\n'
    )
    (device,) = read(tmp_path, text).devices
    for change in (
        {"flops_per_s": {DType.F32: 1.001e17}},
        {"memory_bytes": (1 << 50) + 1},
        {"downlink_bytes_per_s": 1.001e13},
        {"latency_s": 60.1},
    ):
        with pytest.raises(ConfigError):
            replace(device, **change)


def test_a_site_that_is_misspelt_is_answered_with_the_nearest(tmp_path: Path) -> None:
    text = "[[site]]\nname = 'home'\ndown = '1MB/s'\nup = '1MB/s'\n" + PC + "site = 'hone'\n"
    with pytest.raises(ConfigError, match="site is 'hone', expected one of home"):
        read(tmp_path, text)


def test_a_site_that_no_device_uses_is_refused(tmp_path: Path) -> None:
    site = "[[site]]\nname = '{}'\ndown = '1MB/s'\nup = '1MB/s'\n"
    text = site.format("home") + site.format("lab") + PC + "site = 'home'\n"
    with pytest.raises(
        ConfigError, match=r"\[\[site\]\] 2: name is 'lab', expected the site of a device"
    ):
        read(tmp_path, text)


def test_a_kind_is_any_text_where_figures_say_what_it_is(tmp_path: Path) -> None:
    assert read(tmp_path, PC + "kind = 'toaster'\n").devices[0].kind == "toaster"


def test_no_latency_is_a_latency(tmp_path: Path) -> None:
    assert read(tmp_path, PC + "latency = '0ms'\n").devices[0].latency_s == 0


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.toml: cannot be read: No such file"):
        read_fleet(tmp_path / "none.toml")
