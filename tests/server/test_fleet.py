"""A fleet says at once what is wrong with its arguments, and is well-behaved when closed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cleave.core.matrix import DType
from cleave.core.operations import Gemm
from cleave.errors import CleaveError, ConfigError, NoDevicesError
from cleave.server.fleet import Fleet

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet("127.0.0.1", token="secret", without_devices="wait") as fleet:
        yield fleet


def gemm(fleet: Fleet) -> Gemm:
    ones = fleet.adopt(torch.ones(4, 4))
    return Gemm(name="ones", a=ones, b=ones, out=fleet.allocate(4, 4, DType.F32))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"port": -1}, "port is -1, expected 0 to 65535"),
        ({"port": 70_000}, "port is 70000, expected 0 to 65535"),
        ({"host": "no.such.host.invalid"}, "cannot listen on no.such.host.invalid port 0: "),
        ({"host": "192.0.2.77"}, "an address of this machine"),
        ({"wire": "int8"}, "wire is 'int8', expected None or one of float32, bfloat16, float16"),
        ({"without_devices": "panic"}, "without_devices is 'panic', expected one of"),
        ({"heartbeat_s": 0.0}, "heartbeat_s is 0.0, expected more than 0 and at most 3600"),
        ({"heartbeat_s": float("nan")}, "heartbeat_s is nan"),
        ({"heartbeat_s": 4000.0}, "heartbeat_s is 4000.0"),
        ({"max_devices": 0}, "max_devices is 0, expected 1 or more"),
        ({"token": "t" * 5000}, "token has 5000 characters, expected at most 4096"),
    ],
)
def test_unusable_arguments_are_named(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Fleet(**{"host": "127.0.0.1", **arguments})  # type: ignore[arg-type]


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"
        ):
            Fleet("127.0.0.1", port)


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    missing = (str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    with pytest.raises(ConfigError, match=r"cert\.pem.*No such file.*expected two PEM files"):
        Fleet("127.0.0.1", certificate=missing)


def test_join_urls_name_host_port_and_token(fleet: Fleet) -> None:
    assert fleet.join_urls == [f"http://127.0.0.1:{fleet.port}/join/secret"]
    assert fleet.join_url == fleet.join_urls[0]


def test_every_interface_has_its_join_url_and_loopback_comes_last() -> None:
    with Fleet() as fleet:
        assert fleet.join_urls[-1].startswith(f"http://127.0.0.1:{fleet.port}/join/")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_listening_on_all_of_ipv6_is_listening_on_all_of_ipv4() -> None:
    with Fleet("::") as fleet:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, fleet.port), timeout=5.0).close()


def test_waiting_in_vain_says_how_many_came_and_how_to_start_more(fleet: Fleet) -> None:
    with pytest.raises(NoDevicesError) as caught:
        fleet.wait(2, timeout=0.01)
    assert str(caught.value) == (
        f"0 of 2 devices joined within 0.01 s: start more with 'cleave join {fleet.join_url}'"
    )


def test_closing_twice_is_closing_once(fleet: Fleet) -> None:
    fleet.close()
    fleet.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", fleet.port), timeout=5.0)


def test_a_closed_fleet_takes_no_work_and_still_has_its_figures(fleet: Fleet) -> None:
    work = gemm(fleet).forms()
    fleet.close()
    with pytest.raises(CleaveError, match="the fleet is closed: open a new one"):
        fleet.submit(work)
    stats = fleet.stats()
    assert (stats.devices_joined, stats.device_tasks, stats.matrices) == (0, 0, 2)
    assert fleet.devices == []
    assert fleet.events == []


def test_nobody_waits_for_devices_of_a_closed_fleet(fleet: Fleet) -> None:
    closing = threading.Timer(0.05, fleet.close)
    closing.start()
    with pytest.raises(CleaveError, match="the fleet is closed"):
        fleet.wait(1)
    closing.join()


def test_closing_fails_the_work_under_way(fleet: Fleet) -> None:
    pending = fleet.submit(gemm(fleet).forms())
    assert not pending.done
    fleet.close()
    with pytest.raises(CleaveError, match="the fleet was closed while work was under way"):
        pending.wait()
