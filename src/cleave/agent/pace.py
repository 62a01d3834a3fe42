"""When to send, receive or dial: pure rules, the time is an argument."""

from __future__ import annotations

from collections.abc import Callable


class Pacer:
    """Keeps traffic at a rate by saying how long to wait before each transfer.

    Args:
        bytes_per_s: The rate; None for no limit.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    def delay_s(self, n_bytes: int, now_s: float) -> float:
        """Seconds to wait before ``n_bytes`` may pass; they count as passed."""
        if self.bytes_per_s is None:
            return 0.0
        start_s = max(now_s, self._free_at_s)
        self._free_at_s = start_s + n_bytes / self.bytes_per_s
        return start_s - now_s


class Backoff:
    """How long to wait before each attempt to connect: doubling, with jitter, up to a cap.

    Args:
        random: Draws from [0, 1): agents that lost one server do not all come back at once.
        first_s: Longest first wait.
        cap_s: Longest wait.
    """

    def __init__(
        self, random: Callable[[], float], first_s: float = 0.5, cap_s: float = 15.0
    ) -> None:
        self._random = random
        self._first_s = first_s
        self._cap_s = cap_s
        self._attempts = 0

    def next_s(self) -> float:
        """Seconds to wait before the next attempt: between half and all of its bound."""
        bound_s = min(self._cap_s, self._first_s * 2.0 ** min(self._attempts, 30))
        self._attempts += 1
        return bound_s * (0.5 + 0.5 * self._random())

    def reset(self) -> None:
        """A connection held: begin anew."""
        self._attempts = 0
