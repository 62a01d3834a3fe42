"""Waiting for what another process does: looking again and again, for a bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable

BOUND_S = 60.0
_POLL_S = 0.005


def until(holds: Callable[[], object], within_s: float = BOUND_S) -> None:
    """Return when ``holds`` gives something true; fail if it has not after ``within_s``."""
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, f"still waiting after {within_s} s"
        time.sleep(_POLL_S)
