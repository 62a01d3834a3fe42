"""A training run on the screen: a bar and a table that live, or plain lines where they cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from cleave.cli.tables import device_line, device_table

if TYPE_CHECKING:
    from cleave.server.status import DeviceStatus
    from cleave.train.loop import StepRecord

N_LINES = 12  # of a whole run, where there is no terminal


class Screen:
    """Shows steps as they are done.

    Args:
        console: Where; if it is no terminal, lines are printed now and then.
        title: What is under way.
        n_steps: How many there will be.
        tokens_per_step: For the rate.
        devices: The devices as they are now, or None to show none; called from another thread.
    """

    def __init__(
        self,
        console: Console,
        title: str,
        *,
        n_steps: int,
        tokens_per_step: int,
        devices: Callable[[], Sequence[DeviceStatus]] | None = None,
    ) -> None:
        self._console = console
        self._n_steps = n_steps
        self._tokens_per_step = tokens_per_step
        self._devices = devices
        self._seconds: list[float] = []
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            console=console,
        )
        self._task = self._progress.add_task(title, total=n_steps, figures="")
        self._title = title
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4)

    def __enter__(self) -> Screen:
        """Begin to show."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the last picture standing."""
        if self._console.is_terminal:
            self._live.stop()
        elif self._devices is not None and error is None:
            self._console.print(device_table(self._devices()))

    def show(self, record: StepRecord) -> None:
        """Show that a step is done."""
        self._seconds.append(record.seconds)
        figures = step_figures(record, self._seconds, self._tokens_per_step)
        self._progress.update(self._task, completed=record.step + 1, figures=figures)
        if self._console.is_terminal or not _is_due(record.step, self._n_steps):
            return
        self._console.print(
            f"{self._title}: step {record.step + 1}/{self._n_steps}, {figures}", soft_wrap=True
        )
        if self._devices is not None:
            self._console.print(f"  {device_line(self._devices())}", soft_wrap=True)

    def say(self, text: str) -> None:
        """Print a line above the picture."""
        self._console.print(text, soft_wrap=True)

    def _render(self) -> RenderableType:
        if self._devices is None:
            return self._progress
        return Group(self._progress, Text(""), device_table(self._devices()), Text(""))


def step_figures(record: StepRecord, seconds: Sequence[float], tokens_per_step: int) -> str:
    """``"loss 3.214, 812 tokens/s"``; the rate is that of the median step so far."""
    return f"loss {record.loss:.3f}, {tokens_per_step / median(seconds):,.0f} tokens/s"


def _is_due(step: int, n_steps: int) -> bool:
    every = max(1, n_steps // N_LINES)
    return step in (0, n_steps - 1) or (step + 1) % every == 0
