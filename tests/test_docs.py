"""The docs speak of what is there."""

import ast
import re
import runpy
import typing
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer

import cleave
from cleave.catalog.fleets import PRESETS
from cleave.cli.main import app
from cleave.compute.vocabulary import VOCABULARY
from cleave.server.status import DeviceStatus, FleetStats
from cleave.wire.messages import AgentMessage, ServerMessage

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EVERYTHING = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    """The anchors that headings get, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)", path.read_text(encoding="utf-8")):
        target, anchor = link
        if "://" in target:
            continue
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), f"{path.name} links to {target}"
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), f"{target}#{anchor}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_python_in_the_docs_is_python(path: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
        ast.parse(block)


def test_files_that_the_docs_name_are_there() -> None:
    named = re.findall(r"`((?:src/cleave/)?[a-z_]+/[a-z_/]+\.(?:py|md))", EVERYTHING)
    folders = [ROOT, ROOT / "src" / "cleave"]
    assert [name for name in named if not any((at / name).exists() for at in folders)] == []


def test_every_option_that_the_docs_name_is_there() -> None:
    command = typer.main.get_command(app)
    known = {"--help"}
    for sub in [command, *getattr(command, "commands", {}).values()]:
        for parameter in sub.params:
            known |= {*parameter.opts, *parameter.secondary_opts}
    named = re.findall(r"(?:cleave (?:demo|join|plan|run)[^`\n]*?|`)(--[a-z-]+)", EVERYTHING)
    assert set(named) - known == set()


def test_the_planner_page_has_every_option_and_every_preset_of_a_plan() -> None:
    text = page("planner.md")
    plan = getattr(typer.main.get_command(app), "commands", {})["plan"]
    for name in [*(option for each in plan.params for option in each.opts), *PRESETS]:
        assert f"`{name}`" in text or name == "--help", name


def test_the_tiling_in_the_docs_is_drawn_from_a_plan_that_covers_it() -> None:
    pictures = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    for svg in (pictures["tiling_svg"](), (ROOT / "docs" / "tiling.svg").read_text("utf-8")):
        picture = ElementTree.fromstring(svg)
        tiles = [each for each in picture.iter() if each.get("class") == "tile"]
        assert len(tiles) == 16
        area = sum(float(each.get("width", 0)) * float(each.get("height", 0)) for each in tiles)
        assert area == pytest.approx(400 * 360, rel=1e-3)  # sides are rounded to 0.1


def test_the_protocol_page_has_every_op_and_message() -> None:
    text = page("protocol.md")
    messages = {*typing.get_args(AgentMessage), *typing.get_args(ServerMessage)}
    for name in [*VOCABULARY, *(message.__name__ for message in messages)]:
        assert f"`{name}`" in text, name


def test_the_api_page_has_every_public_name_and_figure() -> None:
    text = page("api.md")
    fields = [*DeviceStatus.__dataclass_fields__, *FleetStats.__dataclass_fields__]
    for name in [*(name for name in cleave.__all__ if name[0] != "_"), *fields]:
        assert re.search(rf"[`.]{name}[`(]", text), name
