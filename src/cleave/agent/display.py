"""What the owner sees of an agent: one line that stays current, or a line for each change."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import Protocol, TextIO

from cleave.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What has been done since the agent started.

    Attributes:
        tasks_done: Results sent.
        received_bytes: From the server.
        sent_bytes: To the server.
        held_bytes: Memory lent at the moment.
    """

    tasks_done: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    held_bytes: int = 0


class Display(Protocol):
    """Shows an agent to its owner."""

    def state(self, text: str) -> None:
        """What the agent does now has changed."""
        ...

    def failure(self, text: str) -> None:
        """Why the agent ends, and what to do."""
        ...

    def work(self, work: Work) -> None:
        """How far it is; called every second."""
        ...


class LineDisplay:
    """Writes to a stream: one line rewritten in place on a terminal, else one line a change."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._state = ""

    def state(self, text: str) -> None:
        """Write what has changed, once."""
        if text == self._state:
            return
        self._state = text
        start = "\r\x1b[K" if self._is_terminal else ""
        self._write(f"{start}{time.strftime('%H:%M:%S')}  {text}\n")

    def failure(self, text: str) -> None:
        """Write it."""
        self.state(text)

    def work(self, work: Work) -> None:
        """Rewrite the last line of a terminal."""
        if not self._is_terminal:
            return
        line = (
            f"{work.tasks_done} tasks, {format_bytes(work.received_bytes)} in, "
            f"{format_bytes(work.sent_bytes)} out, {format_bytes(work.held_bytes)} held"
        )
        width = shutil.get_terminal_size().columns - 1
        self._write(f"\r\x1b[K{line[:width]}")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class QuietDisplay:
    """For an agent that a program started: it speaks only if it fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def state(self, text: str) -> None:
        """Nothing."""

    def failure(self, text: str) -> None:
        """Write it."""
        self._stream.write(f"agent: {text}\n")
        self._stream.flush()

    def work(self, work: Work) -> None:
        """Nothing."""
