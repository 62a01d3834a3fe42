"""Devices as tables and lines."""

from rich.console import Console

from cleave.cli.tables import device_line, device_table
from cleave.server.status import DeviceStatus

DEVICES = [
    DeviceStatus(
        device_id=1,
        name="ann",
        state="busy",
        share=0.75,
        bytes_down=25_000_000,
        bytes_up=1500,
        gflops_per_s=102.4,
        tasks=12,
    ),
    DeviceStatus(device_id=2, name="[bob]", state="paused", reason="on battery", share=0.25),
]


def shown() -> list[str]:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(device_table(DEVICES))
    return capture.get().splitlines()


def test_a_device_is_a_row_with_its_units() -> None:
    heading, ann, _ = shown()
    assert heading.split() == ["device", "state", "share", "tasks", "down", "up", "speed"]
    assert " ".join(ann.split()) == "ann busy 75% 12 25 MB 1.5 kB 102 GFLOP/s"


def test_a_paused_device_says_why_and_names_are_not_markup() -> None:
    assert "[bob]" in shown()[2]
    assert "paused: on battery" in shown()[2]


def test_a_line_for_logs() -> None:
    assert device_line(DEVICES) == "ann 75% busy, [bob] 25% paused"
