"""A run on the screen."""

import io

from rich.console import Console

from cleave.cli.screen import Screen
from cleave.server.status import DeviceStatus
from cleave.train.loop import StepRecord

DEVICES = [DeviceStatus(device_id=1, name="ann", state="busy", share=1.0)]


def run(*, terminal: bool, n_steps: int = 24) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100, highlight=False)
    screen = Screen(
        console, "training", n_steps=n_steps, tokens_per_step=1000, devices=lambda: DEVICES
    )
    with screen:
        for step in range(n_steps):
            screen.show(StepRecord(step, 4.0 - step / 10, 0.5))
        screen.say("something happened")
    return stream.getvalue()


def test_without_a_terminal_a_run_is_a_few_plain_lines() -> None:
    lines = run(terminal=False).splitlines()
    assert lines[0] == "training: step 1/24, loss 4.000, 2,000 tokens/s"
    assert lines[1] == "  ann 100% busy"
    assert lines[24] == "training: step 24/24, loss 1.700, 2,000 tokens/s"
    assert lines[26] == "something happened"
    assert len(lines) == 2 * 13 + 1 + 2  # first step, every second one, what was said, a table
    assert "\x1b" not in "".join(lines)


def test_a_short_run_shows_every_step() -> None:
    assert run(terminal=False, n_steps=3).count("training: step") == 3


def test_a_terminal_shows_the_bar_and_the_devices() -> None:
    output = run(terminal=True)
    assert "24/24" in output
    assert "loss 1.700" in output
    assert "ann" in output
