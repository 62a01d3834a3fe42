"""A script inside its fleet."""

import sys
import traceback
from pathlib import Path
from types import TracebackType

import pytest
from typer.testing import CliRunner, Result

import cleave
from cleave.cli.main import app
from cleave.errors import ConfigError


@pytest.fixture(autouse=True)
def _keep_interpreter_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))


def run(folder: Path, script: str, *arguments: str) -> Result:
    path = folder / "script.py"
    path.write_text(script)
    options = ["--devices", "0", "--host", "127.0.0.1", "--port", "0"]
    return CliRunner().invoke(app, ["run", *options, str(path), *arguments])


def test_a_script_finds_its_fleet_its_arguments_and_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("WORD = 'beside'")
    result = run(
        tmp_path,
        "import sys, cleave, neighbour\n"
        "print(type(cleave.current_fleet()).__name__, sys.argv[1:], neighbour.WORD, __name__)\n",
        "--devices",
        "7",
    )
    assert result.exit_code == 0
    assert "Fleet ['--devices', '7'] beside __main__" in result.output
    assert "cleave join http://127.0.0.1:" in result.output


def test_the_exit_code_of_a_script_is_passed_on(tmp_path: Path) -> None:
    assert run(tmp_path, "raise SystemExit(7)").exit_code == 7


def test_an_error_keeps_its_traceback_and_shows_only_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    def keep(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shown.extend(traceback.format_exception(kind, error, trace))

    monkeypatch.setattr(sys, "excepthook", keep)
    result = run(tmp_path, "def f():\n    raise ValueError('mine')\nf()\n")
    text = "".join(shown)
    assert result.exit_code == 1
    assert text.endswith("ValueError: mine\n")
    assert "script.py" in text
    assert "runpy" not in text


def test_outside_of_a_run_there_is_no_fleet() -> None:
    with pytest.raises(ConfigError, match="cleave run --devices N SCRIPT"):
        cleave.current_fleet()


def test_too_few_devices_are_an_error_that_says_how_to_join(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("")
    options = ["--devices", "1", "--timeout", "0.1", "--host", "127.0.0.1", "--port", "0"]
    result = CliRunner().invoke(app, ["run", *options, str(path)])
    assert "0 of 1 devices joined" in str(result.exception)
