"""The ``cleave`` command: its subcommands, and every error as one line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from cleave import __version__
from cleave.cli.demo import demo
from cleave.cli.join import join
from cleave.cli.plan import plan
from cleave.cli.run import run
from cleave.errors import CleaveError

app = typer.Typer(
    name="cleave",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command()(demo)
app.command()(join)
app.command()(plan)
app.command(
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
)(run)


def _print_version(wanted: bool) -> None:
    if wanted:
        Console().print(f"cleave {__version__}", highlight=False)
        raise typer.Exit


@app.callback(
    epilog="To see it work: [bold]cleave demo[/bold]; to know before: [bold]cleave plan[/bold]"
)
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and leave."
        ),
    ] = False,
) -> None:
    """Train transformers on the computers people already own.

    One machine runs your PyTorch script and keeps the weights; the others lend
    their processors and do the matrix products and the attention.
    """


def main() -> None:
    """Run the command; a `CleaveError` is one line on stderr and exit code 2."""
    try:
        app()
    except CleaveError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
