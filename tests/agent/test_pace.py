"""Traffic keeps its rate, and lost servers are not hammered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleave.agent.pace import Backoff, Pacer


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=20), st.floats(1e3, 1e9))
def test_all_but_the_last_transfer_take_their_time_at_the_rate(
    sizes: list[int], rate: float
) -> None:
    pacer, now_s = Pacer(rate), 5.0
    for n_bytes in sizes:
        now_s += pacer.delay_s(n_bytes, now_s)
    assert now_s - 5.0 == pytest.approx(sum(sizes[:-1]) / rate, rel=1e-6, abs=1e-9)


def test_idle_time_is_not_saved_up() -> None:
    pacer = Pacer(100.0)
    assert pacer.delay_s(100, 0.0) == 0.0
    assert pacer.delay_s(100, 50.0) == 0.0
    assert pacer.delay_s(100, 50.0) == 1.0


def test_without_a_limit_nothing_waits() -> None:
    pacer = Pacer(None)
    assert [pacer.delay_s(10**9, 0.0) for _ in range(3)] == [0.0] * 3


def test_waits_double_up_to_the_cap_and_begin_anew() -> None:
    backoff = Backoff(lambda: 1.0, first_s=0.5, cap_s=15.0)
    assert [backoff.next_s() for _ in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    backoff.reset()
    assert backoff.next_s() == 0.5


def test_jitter_takes_at_most_half_off() -> None:
    assert Backoff(lambda: 0.0, first_s=0.5).next_s() == 0.25


def test_a_week_of_attempts_still_waits_the_cap() -> None:
    backoff = Backoff(lambda: 1.0)
    assert [backoff.next_s() for _ in range(50_000)][-1] == 15.0
