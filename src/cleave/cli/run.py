"""``cleave run``: a fleet around a script."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cleave.errors import ConfigError

if TYPE_CHECKING:
    from cleave.server.fleet import Fleet


def run(
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT", help="A Python script.", show_default=False)
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARG", help="Passed on to the script.", show_default=False),
    ] = None,
    *,
    devices: Annotated[
        int,
        typer.Option(
            "--devices", "-n", min=0, metavar="N", help="Start the script when so many are in."
        ),
    ] = 1,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="How long to wait for them.", show_default="for ever"),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="TCP port; 0 takes a free one.")
    ] = 7077,
    token: Annotated[
        str | None, typer.Option(help="What devices must know.", show_default="a new one")
    ] = None,
) -> None:
    """Run a training SCRIPT with a fleet of devices.

    It prints what to run on other machines, waits for them, then runs the script,
    in which [bold]cleave.current_fleet()[/bold] is the fleet:

        cleave.offload(model, cleave.current_fleet())

    Options come before the script; what follows it is the script's own.
    """
    if not script.is_file():
        raise ConfigError(f"no script {str(script)!r}: give the path of a Python file")
    from cleave.server.current import as_current
    from cleave.server.fleet import Fleet

    console = Console(stderr=True, highlight=False)
    with Fleet(host=host, port=port, token=token) as fleet:
        _invite(console, fleet, devices)
        fleet.wait(devices=devices, timeout=timeout)
        console.print(f"{len(fleet.devices)} in: running {script}")
        with as_current(fleet):
            _run_script(script, arguments or [])


def _invite(console: Console, fleet: Fleet, n_devices: int) -> None:
    console.print("To lend a device, run on it one of")
    for url in fleet.join_urls:
        console.print(f"  [bold]cleave join {url}[/]", soft_wrap=True)
    if n_devices:
        console.print(f"Waiting for {n_devices} (Ctrl-C leaves)")


def _run_script(script: Path, arguments: list[str]) -> None:
    """Run as ``python script`` would; what it raises is shown with its own traceback alone."""
    path = str(script)
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except Exception as error:
        sys.excepthook(type(error), error, _inside(path, error.__traceback__))
        raise typer.Exit(1) from None


def _inside(path: str, traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame of the script on; None if the script never ran."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename != path:
        traceback = traceback.tb_next
    return traceback
