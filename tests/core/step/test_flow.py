"""Sequences go from tile to tile, in turn."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleave.core.step.flow import Stops


def stops(spans: list[tuple[int, int, int, int]], **seconds: float) -> Stops:
    """Tiles of ``(row0, row1, enters, leaves)``, alike otherwise."""
    columns = [np.array(column, dtype=np.int64) for column in zip(*spans, strict=True)]
    names = ("latency_s", "first_s", "down_s", "compute_s", "up_s", "last_s")
    times = {name: np.full(len(spans), seconds.get(name, 0.0)) for name in names}
    row0, row1, enters, leaves = columns
    return Stops(row0=row0, row1=row1, enters=enters, leaves=leaves, **times)


def test_one_tile_sends_its_weights_and_all_sequences_and_returns_its_gradients() -> None:
    one = stops([(0, 3, 0, 1)], latency_s=0.5, first_s=7, down_s=1, compute_s=10, up_s=2, last_s=5)
    # Weights 7, the first sequence 0.5 + 1, three computed 30, the last returned 2, gradients 5.
    assert one.end_s() == pytest.approx(45.5)


def test_a_pipeline_fills_once() -> None:
    two = stops([(0, 4, 0, 1), (0, 4, 1, 2)], compute_s=1)
    assert two.end_s() == 5
    assert two.turned().end_s() == 5


def test_tiles_beside_each_other_do_not_wait() -> None:
    assert stops([(0, 2, 0, 1), (2, 4, 0, 1)], compute_s=1).end_s() == 2


def test_the_next_layer_waits_for_every_slice() -> None:
    three = stops([(0, 2, 0, 1), (0, 2, 0, 1), (0, 2, 1, 2)])
    slow = replace(three, compute_s=np.array([1.0, 5.0, 1.0]))
    assert slow.end_s() == 11


def test_segments_of_unequal_length_meet_where_one_ends() -> None:
    # Sequences 0 and 1 go through both layers at once, 2 and 3 through one after the other, and
    # all of them through the third.
    mixed = stops([(0, 2, 0, 2), (2, 4, 0, 1), (2, 4, 1, 2), (0, 4, 2, 3)], compute_s=1)
    # The first to be there are taken first: 0 at 1, 1 at 2, 2 at 2 and 3 at 3.
    assert mixed.end_s() == 5
    assert mixed.turned().end_s() == 6  # four through the third layer, then two more hops


def _by_hand(tiles: Stops, n_rows: int) -> float:
    """As `Stops.end_s`, sequence by sequence."""
    ready = {(0, row): 0.0 for row in range(n_rows)}
    end_s = 0.0
    for i in np.argsort(tiles.enters, kind="stable"):
        sent = computed = returned = 0.0
        rows = range(tiles.row0[i], tiles.row1[i])
        for row in sorted(rows, key=lambda row: max(ready[tiles.enters[i], row], tiles.first_s[i])):
            there = max(ready[tiles.enters[i], row], tiles.first_s[i]) + tiles.latency_s[i]
            sent = max(sent, there) + tiles.down_s[i]
            computed = max(computed, sent) + tiles.compute_s[i]
            returned = max(returned, computed) + tiles.up_s[i]
            place = (int(tiles.leaves[i]), row)
            ready[place] = max(ready.get(place, 0.0), returned)
        end_s = max(end_s, returned + tiles.last_s[i])
    return end_s


@given(st.lists(st.tuples(*[st.integers(0, 9)] * 6), min_size=4, max_size=4), st.integers(1, 4))
def test_all_at_once_is_as_one_by_one(times: list[tuple[int, ...]], cut: int) -> None:
    spans = [(0, cut, 0, 1), (cut, 5, 0, 1), (0, 3, 1, 2), (3, 5, 1, 2)]
    names = ("latency_s", "first_s", "down_s", "compute_s", "up_s", "last_s")
    columns = zip(names, zip(*times, strict=True), strict=True)
    tiles = replace(stops(spans), **{name: np.array(column, float) for name, column in columns})
    assert tiles.end_s() == pytest.approx(_by_hand(tiles, 5))
