"""What devices alone keep: made again, along the chain of works, when a device loses it."""

from __future__ import annotations

from collections.abc import Sequence

from cleave.core.matrix import Region
from cleave.core.scheduling.book import Book
from cleave.core.scheduling.placing import Placer
from cleave.core.scheduling.state import DeviceState, Strip, WorkState


class Lineage:
    """Knows which work made a kept block, and has its tile done again.

    A tile of work that is not pinned is cut out as a fresh strip and placed anywhere. Tiles of work
    that is pinned to it follow when it is done again, each where its producer's tile then lies.
    """

    def __init__(self, book: Book, placer: Placer) -> None:
        """Work on a book that others may change between calls."""
        self._book = book
        self._placer = placer
        self._released: set[int] = set()

    def pin(self, state: WorkState, before: Sequence[WorkState]) -> None:
        """Begin pinned work: its tiles are done where those of the work before it are kept."""
        name = state.work.name
        if len(before) != 1 or not before[0].kept:
            self._placer.fail(state, f"{name}: pinned to work that keeps nothing on devices")
        elif before[0].is_complete and before[0].n_missing and not before[0].open:
            self._placer.fail(state, f"{name}: {_gone(before[0])}")
        else:
            for tile, device_id in before[0].done.items():
                self._placer.bind(state, tile, self._book.devices[device_id])

    def accepted(self, strip: Strip, device: DeviceState) -> None:
        """A tile is done and kept on a device: what is pinned to it can be done there."""
        for follower in self._pinned_to(strip.state):
            if not (strip.is_again and follower.has(strip.tile)):
                self._placer.bind(follower, strip.tile, device)

    def released(self, tensor_id: int) -> None:
        """A matrix will not be read again: works that nobody can need any more are forgotten."""
        for state in tuple(self._book.works.values()):
            if tensor_id in state.kept:
                self._released.add(tensor_id)
                self.retire(state)
            elif any(operand.matrix.tensor_id == tensor_id for operand in state.work.inputs):
                state.is_final = True

    def retire(self, state: WorkState) -> None:
        """Forget a work that nobody can need again."""
        if state.is_complete and not state.open and self._released.issuperset(state.kept):
            self._book.works.pop(state.work_id, None)
            self._released.difference_update(state.kept)

    def left(self, device_id: int) -> list[Strip]:
        """A device is gone with all it kept; strips that are to be placed."""
        strips: list[Strip] = []
        for state in tuple(self._book.works.values()):
            if state.kept and not self._released.issuperset(state.kept):
                gone = [tile for tile, holder in state.done.items() if holder == device_id]
                strips += self._make_again(state, gone, device_id)
        return strips

    def _make_again(self, state: WorkState, gone: Sequence[Region], device_id: int) -> list[Strip]:
        if not gone or state.work_id not in self._book.works:
            return []
        for tile in gone:
            state.lose(tile)
        for follower in self._pinned_to(state):
            self._close_bound(follower, gone, device_id)
        if state.is_final:
            self._give_up(state)
            return []
        if not state.submitted.pinned:
            strips = [self._book.new_strip(state, tile) for tile in gone]
            for strip in strips:
                strip.is_again = True
            return strips
        if state.submitted.after[0] not in self._book.works:
            self._give_up(state)
        return []  # bound again where the producer's tile then lies

    def _give_up(self, state: WorkState) -> None:
        """What a work kept cannot be made again: what would read it fails, and so may the work."""
        if not state.is_complete:
            self._placer.fail(state, f"{state.work.name}: {_gone(state)}")
            return
        for work_id in state.followers:
            follower = self._book.works.get(work_id)
            if follower is not None and not follower.is_complete:
                self._placer.fail(follower, f"{follower.work.name}: {_gone(state)}")

    def _close_bound(self, state: WorkState, gone: Sequence[Region], device_id: int) -> None:
        """Strips whose inputs were in what is gone cannot be done any more."""
        for strip in tuple(state.open.values()):
            if strip.bound_to == device_id and any(tile.contains(strip.tile) for tile in gone):
                self._book.close_strip(strip)

    def _pinned_to(self, state: WorkState) -> list[WorkState]:
        followers = [self._book.works.get(work_id) for work_id in state.followers]
        return [each for each in followers if each is not None and each.submitted.pinned]


def _gone(state: WorkState) -> str:
    return (
        f"what {state.work.name!r} kept on a device that lost it cannot be made again, "
        "as its inputs were released: release them after what is kept"
    )
