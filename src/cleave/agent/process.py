"""The agent as a process: it comes last on its machine, hears signals, and outlives no parent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import psutil


def take_lowest_priority() -> None:
    """Let every other program of this machine come first, for processor and disk."""
    process = psutil.Process()
    with suppress(psutil.Error, OSError):
        process.nice(psutil.IDLE_PRIORITY_CLASS if sys.platform == "win32" else 19)
    with suppress(psutil.Error, OSError, AttributeError):
        process.ionice(
            psutil.IOPRIO_VERYLOW if sys.platform == "win32" else psutil.IOPRIO_CLASS_IDLE
        )


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop where it is installed, else the standard one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def on_signals(
    loop: asyncio.AbstractEventLoop, stop: Callable[[str], None], pause: Callable[[bool], None]
) -> None:
    """Call ``stop`` on Ctrl-C and SIGTERM, ``pause`` with True on SIGUSR1 and False on SIGUSR2."""
    actions: dict[str, Callable[[], None]] = {
        "SIGINT": lambda: stop("stopped by its owner"),
        "SIGTERM": lambda: stop("stopped"),
        "SIGUSR1": lambda: pause(True),
        "SIGUSR2": lambda: pause(False),
    }
    for name, action in actions.items():
        number = getattr(signal, name, None)
        if number is not None:
            _on_signal(loop, number, action)


def _on_signal(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, action: Callable[[], None]
) -> None:
    try:
        loop.add_signal_handler(number, action)
    except NotImplementedError:  # Windows
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(action))


class Parent:
    """The process that started this one."""

    def __init__(self, pid: int) -> None:
        self._is_direct = os.getppid() == pid
        self._pid = pid
        try:
            self._process: psutil.Process | None = psutil.Process(pid)
        except psutil.NoSuchProcess:
            self._process = None

    @property
    def is_gone(self) -> bool:
        """Whether it has ended; a later process of the same number does not count."""
        if self._process is None or (self._is_direct and os.getppid() != self._pid):
            return True
        try:
            return not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True


def leave_now(code: int) -> None:
    """End the process although a thread still computes: nothing is left to save."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
