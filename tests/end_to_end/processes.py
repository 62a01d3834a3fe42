"""Commands that a test starts, and what they print."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType

import psutil
from tests.end_to_end.waiting import BOUND_S, until

ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONUNBUFFERED": "",  # a line is written whole, and not mixed with one of the log
}


class Process:
    """A command whose lines are collected as they come; killed at the end of the block.

    Attributes:
        lines: What it has printed so far, on either stream.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENVIRONMENT,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def text(self) -> str:
        """All that it has printed, for looking something up."""
        return "\n".join(self.lines)

    @property
    def cpu_s(self) -> float:
        """Processor time that it has used."""
        return float(psutil.Process(self.pid).cpu_times().user)

    def says(self, text: str, within_s: float = BOUND_S) -> None:
        """Return when it has printed ``text``."""
        try:
            until(lambda: text in self.text or not self.is_alive, within_s)
        except AssertionError:
            self._process.send_signal(signal.SIGABRT)  # and it prints what it was doing
            self.ends()
        assert text in self.text, self.text

    def tells(self, name: str) -> str:
        """What it prints after ``name``, once it has."""
        self.says(f"{name} ")
        return next(line for line in self.lines if line.startswith(f"{name} ")).split()[1]

    def send(self, signal_number: int) -> None:
        self._process.send_signal(signal_number)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.wait()

    def ends(self, within_s: float = BOUND_S) -> int:
        """Its exit code; all its lines are there."""
        code = self._process.wait(within_s)
        self._reader.join(within_s)
        return code

    def ends_in_s(self, within_s: float = BOUND_S) -> float:
        """Seconds until it has ended."""
        begin_s = time.monotonic()
        self._process.wait(within_s)
        return time.monotonic() - begin_s

    def close(self) -> None:
        """Kill it and what it has started."""
        children = psutil.Process(self.pid).children(recursive=True) if self.is_alive else []
        self.kill()
        for child in children:
            child.kill()
        self._reader.join(BOUND_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                self.lines.append(line.rstrip("\n"))


def agent(join_url: str, *options: str) -> Process:
    """``cleave join`` with numpy on one thread, as an owner would start it."""
    return Process(
        ["-m", "cleave", "join", join_url, "--backend", "numpy", "--threads", "1", *options]
    )


def script(code: str, *arguments: str) -> Process:
    """A user's script."""
    return Process(["-c", code, *arguments])


_POLITE_AGENT = """
import sys
from cleave.agent import app
from cleave.agent.config import AgentConfig
from cleave.wire.join import JoinAddress

app.PAUSE_POLL_S = 0.02
sys.exit(app.run_agent(AgentConfig(
    address=JoinAddress.parse(sys.argv[1]),
    name=sys.argv[2],
    backend="numpy",
    threads=1,
    memory_bytes=1 << 30,
    resume_after_s=0.0,
    lowest_priority=False,
)))
"""


def polite_agent(join_url: str, name: str) -> Process:
    """An agent that leaves, pauses (SIGUSR1) and resumes (SIGUSR2) at once, however busy."""
    return Process(["-c", _POLITE_AGENT, join_url, name])
