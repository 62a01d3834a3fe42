"""The command as a person meets it."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from cleave import __version__
from cleave.cli.main import app, main

COMMANDS = ["demo", "join", "plan", "run"]


def cleave(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cleave", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def fail(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["cleave", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2


def test_an_error_is_one_line_and_exit_code_two() -> None:
    done = cleave("join", "localhost:7077")
    assert done.returncode == 2
    assert done.stderr.startswith("error: join address localhost:7077 has no token")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("join", "http://h:1/join/t", "--memory", "lots"), "'lots' is not a size"),
        (("join", "http://h:1/join/t", "--limit-up", "20"), "'20' is not a rate"),
        (("join", "http://h:1/join/t", "--threads", "0"), "--threads is 0"),
        (("join", "ftp://h:1/join/t"), "begins with 'ftp'"),
        (("run", "no-such-script.py"), "no script 'no-such-script.py'"),
    ],
)
def test_a_wrong_argument_is_named(
    arguments: tuple[str, ...],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail(monkeypatch, *arguments)
    assert text in capsys.readouterr().err


def test_text_in_brackets_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(monkeypatch, "run", "[bold]x.py")
    assert "[bold]x.py" in capsys.readouterr().err


def test_the_version_is_shown() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"cleave {__version__}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_word_of_help(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], terminal_width=100)
    assert result.exit_code == 0
    options = [line for line in result.output.splitlines() if line.lstrip("│ ").startswith("--")]
    assert options
    for line in options:
        assert len(line.strip("│ ").split()) > 2, line


def test_without_a_command_the_commands_are_listed() -> None:
    output = CliRunner().invoke(app, []).output
    assert all(f" {command} " in output for command in COMMANDS)
