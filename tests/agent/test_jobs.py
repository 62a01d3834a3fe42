"""Which tasks are accepted, when they are ready, and that every byte is accounted for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.tasks import added, block, gemm, kept, returned, rows

from cleave.agent.jobs import Job, JobBook
from cleave.agent.store import BlockStore
from cleave.compute import load_backend
from cleave.core.matrix import DType, Region
from cleave.errors import ProtocolError
from cleave.wire.messages import Refused

BACKEND = load_backend("numpy")
A, B = block(1, 4, 3), block(2, 3, 5)  # 48 and 60 bytes; their product has 80


def opened(budget_bytes: int = 10_000) -> tuple[JobBook, BlockStore]:
    store = BlockStore(BACKEND, budget_bytes)
    return JobBook(store), store


def fill(store: BlockStore, handle: int, row0: int, row1: int, n_cols: int) -> None:
    ones = np.ones((row1 - row0, n_cols), np.float32)
    store.fill(handle, Region(row0, row1, 0, n_cols), ones.data.cast("B"))


def fill_both(store: BlockStore) -> None:
    fill(store, 1, 0, 4, 3)
    fill(store, 2, 0, 3, 5)


def the_ready(book: JobBook) -> Job:
    (job,) = book.take_ready()
    return job


def test_a_task_is_ready_once_every_row_it_views_is_there() -> None:
    book, store = opened()
    assert book.accept(gemm(1, rows(A, 0, 2, resident_rows=0), B)) == []
    fill(store, 1, 0, 2, 3)
    assert book.take_ready() == []
    fill(store, 2, 0, 3, 5)
    assert the_ready(book).task_id == 1
    assert book.take_ready() == []


def test_a_later_task_views_rows_that_are_there_already() -> None:
    book, store = opened()
    book.accept(gemm(1, A, B))
    fill_both(store)
    book.take_ready()
    first, second = rows(A, 1, 3, resident_rows=3), block(2, 3, 5, resident_rows=3)
    assert book.accept(gemm(2, first, second)) == []
    assert the_ready(book).task_id == 2


def test_what_a_task_reserves_is_free_again_when_it_ends_and_blocks_when_dropped() -> None:
    book, store = opened()
    book.accept(gemm(1, A, B, workspace_bytes=7))
    assert store.held_bytes == 48 + 60 + 80 + 7
    fill_both(store)
    job = the_ready(book)
    assert book.close(job) == []
    assert store.held_bytes == 48 + 60
    book.drop((1, 2))
    assert (store.held_bytes, len(store), len(book)) == (0, 0, 0)


def test_a_task_that_does_not_fit_is_refused_with_what_it_needs_and_allocates_nothing() -> None:
    book, store = opened(budget_bytes=48 + 60 + 80 - 1)
    assert book.accept(gemm(1, A, B)) == [Refused(1, "memory", (1, 2), 48 + 60 + 80)]
    assert store.held_bytes == 0
    fill_both(store)  # pieces for what was refused are ignored
    assert len(store) == 0


def test_results_on_their_way_count_against_the_budget() -> None:
    book, store = opened(budget_bytes=48 + 60 + 2 * 80 - 1)
    book.accept(gemm(1, A, B))
    fill_both(store)
    job = the_ready(book)
    book.made(job)
    again = gemm(2, block(1, 4, 3, resident_rows=4), block(2, 3, 5, resident_rows=3))
    assert book.accept(again) == [Refused(2, "memory", (), 80)]
    book.close(job)
    assert book.accept(again) == []


def test_a_block_in_use_is_freed_when_its_task_ends() -> None:
    book, store = opened()
    book.accept(gemm(1, A, B))
    fill_both(store)
    job = the_ready(book)
    assert book.drop((1,)) == []
    assert store.held_bytes == 48 + 60 + 80
    book.close(job)
    assert store.held_bytes == 60


def test_rows_that_the_server_believes_in_but_are_not_there_are_missing() -> None:
    book, store = opened()
    book.accept(gemm(1, A, B))
    fill(store, 1, 0, 2, 3)
    refusals = book.accept(gemm(2, block(1, 4, 3, resident_rows=3), B))
    # The block is forgotten, so the task that waits for its other rows is refused as well.
    assert refusals == [Refused(2, "missing", (1,)), Refused(1, "missing", (1,))]
    assert store.get(1) is None


def test_a_block_that_is_not_held_at_all_is_missing() -> None:
    book, _ = opened()
    assert book.accept(gemm(1, block(1, 4, 3, resident_rows=4), B)) == [
        Refused(1, "missing", (1, 2))
    ]


def test_a_dropped_block_that_a_task_waits_for_has_it_refused() -> None:
    book, store = opened()
    book.accept(gemm(1, A, B))
    assert book.drop((2,)) == [Refused(1, "missing", (2,))]
    assert (len(book), store.held_bytes) == (0, 48)


def test_a_task_that_reads_a_kept_output_waits_for_it() -> None:
    book, store = opened()
    book.accept(gemm(1, A, B, kept(3, 4, 5)))
    book.accept(gemm(2, block(3, 4, 5, resident_rows=4), block(4, 5, 2)))
    fill_both(store)
    fill(store, 4, 0, 5, 2)
    maker = the_ready(book)
    book.made(maker)
    book.close(maker)
    assert the_ready(book).task_id == 2


def test_a_kept_output_that_is_never_made_is_missing_to_those_who_wait_for_it() -> None:
    book, store = opened()
    book.accept(gemm(1, A, B, kept(3, 4, 5)))
    book.accept(gemm(2, block(3, 4, 5, resident_rows=4), block(4, 5, 2)))
    fill_both(store)
    assert book.close(the_ready(book)) == [Refused(2, "missing", (3,))]
    assert store.get(3) is None


def test_a_sum_is_read_after_all_that_was_to_be_added_before() -> None:
    book, store = opened()
    book.accept(gemm(1, A, B, added(3, 4, 5)))
    again = (block(1, 4, 3, resident_rows=0), block(2, 3, 5, resident_rows=0))
    book.accept(gemm(2, *again, added(3, 4, 5)))
    book.accept(gemm(3, block(3, 4, 5, resident_rows=4), block(4, 5, 2)))
    fill(store, 4, 0, 5, 2)
    fill_both(store)
    first, second = book.take_ready()
    book.made(first)
    assert book.take_ready() == []
    book.made(second)
    assert the_ready(book).task_id == 3


def test_an_open_task_may_not_be_sent_twice() -> None:
    book, _ = opened()
    book.accept(gemm(1, A, B))
    with pytest.raises(ProtocolError, match="open already"):
        book.accept(gemm(1, A, B))


def test_a_block_does_not_change_its_size_or_type() -> None:
    book, _ = opened()
    book.accept(gemm(1, A, B))
    with pytest.raises(ProtocolError, match="block 1 is 4 x 3 float32, a task says 5 x 3"):
        book.accept(gemm(2, block(1, 5, 3), B))


def test_pieces_for_the_output_of_a_task_are_refused() -> None:
    book, store = opened()
    book.accept(gemm(1, A, B, kept(3, 4, 5)))
    with pytest.raises(ProtocolError, match="output of a task"):
        fill(store, 3, 0, 4, 5)


def test_a_machine_with_less_memory_than_it_lends_refuses() -> None:
    book, store = opened(budget_bytes=2**62)
    refusals = book.accept(gemm(1, A, block(2, 3, 2**31 - 1), returned(4, 2**31 - 1)))
    if refusals:  # where memory is not promised before it is used, it opens
        assert [refusal.reason for refusal in refusals] == ["memory"]
        assert store.held_bytes == 0


@given(st.data())
def test_the_account_is_zero_when_all_is_over(data: st.DataObject) -> None:
    book, store = opened(budget_bytes=400)
    given_out: list[Job] = []
    for task_id in range(1, 12):
        a, b = block(data.draw(st.integers(1, 3)), 4, 4), block(data.draw(st.integers(4, 6)), 4, 4)
        output = data.draw(
            st.sampled_from([returned(4, 4), kept(10 + task_id, 4, 4), added(9, 4, 4)])
        )
        book.accept(gemm(task_id, a, b, output))
        fill(store, data.draw(st.integers(1, 6)), 0, 4, 4)
        given_out += book.take_ready()
        ends, succeeds = data.draw(st.tuples(st.booleans(), st.booleans()))
        if given_out and ends:
            job = given_out.pop()
            if succeeds:
                book.made(job)
            book.close(job)
        if data.draw(st.booleans()):
            book.drop((data.draw(st.integers(1, 22)),))
        assert 0 <= store.held_bytes <= 400
    book.drop(range(1, 23))
    for job in given_out:
        book.close(job)
    assert book.waiting() == []
    assert (store.held_bytes, len(store), len(book)) == (0, 0, 0)


def test_dtypes_count_with_their_size() -> None:
    store = BlockStore(BACKEND, 100)
    store.open(1, 3, 4, DType.BF16)
    assert store.held_bytes == 24
