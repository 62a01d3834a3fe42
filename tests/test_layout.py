"""The package keeps its shape: sizes, docstrings, public names, and what an import may cost."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cleave

ROOT = Path(cleave.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether typer reads its parameters: each is an option with its help text."""
    return "typer." in ast.unparse(function.args)


def required(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = [*function.args.posonlyargs, *function.args.args]
    own = [argument for argument in given if argument.arg not in {"self", "cls"}]
    return len(own) - len(function.args.defaults)


def run_python(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_module_says_its_duty_and_fits_in_one_sitting(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{name_of(path)} has no docstring"
    assert len(text.splitlines()) <= MAX_FILE_LINES
    for function in functions(tree):
        lines = (function.end_lineno or 0) - function.lineno + 1
        if not is_command(function):
            assert lines <= MAX_FUNCTION_LINES, f"{name_of(path)}: {function.name} has {lines}"
            assert required(function) <= MAX_PARAMETERS, f"{name_of(path)}: {function.name}"


def test_the_public_names_are_there_and_listed() -> None:
    pytest.importorskip("torch")
    for name in cleave.__all__:
        assert getattr(cleave, name) is not None
    assert set(dir(cleave)) == set(cleave.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'workers'"):
        _ = cleave.workers


def test_importing_cleave_imports_neither_torch_nor_a_server() -> None:
    run_python(
        "import sys, cleave; "
        "assert not {'torch', 'numpy', 'aiohttp'} & set(sys.modules), sorted(sys.modules)"
    )


LIGHT_INSTALL = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "safetensors"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

sys.meta_path.insert(0, Absent())
"""


def test_the_agent_and_the_command_line_work_without_torch() -> None:
    run_python(
        LIGHT_INSTALL
        + "import cleave.agent.app, cleave.compute.numpy_backend, cleave.cli.main\n"
        + "from typer.testing import CliRunner\n"
        + "assert CliRunner().invoke(cleave.cli.main.app, ['join', '--help']).exit_code == 0\n"
    )


def test_a_plan_needs_no_torch() -> None:
    run_python(
        LIGHT_INSTALL
        + "import cleave.cli.main\n"
        + "from typer.testing import CliRunner\n"
        + "question = ['plan', '--model', 'gpt2-small', '--tokens', '4096']\n"
        + "assert CliRunner().invoke(cleave.cli.main.app, question).exit_code == 0\n"
    )


def test_without_torch_training_says_what_to_install() -> None:
    run_python(
        LIGHT_INSTALL
        + "import cleave\n"
        + "try:\n"
        + "    cleave.offload\n"
        + "except ModuleNotFoundError as error:\n"
        + "    assert 'cleave-train[host]' in str(error), error\n"
        + "else:\n"
        + "    raise SystemExit('offload came without torch')\n"
    )
