"""When sequences have flowed through all layers, each waiting for the one before.

A sequence enters a tile's device when it has left the layer before; there it is sent, computed and
returned, each in turn with the other sequences of the tile. While one is computed the next is on
its way, so a tile is busy for the longest of the three per sequence, and the first takes all three.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from cleave.core.planning.cost import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stops:
    """Tiles on the way of the sequences, ``(tiles,)`` each; times in seconds.

    Attributes:
        row0: First sequence.
        row1: One past the last.
        enters: Boundary between layers from which they come.
        leaves: Boundary to which they go: above ``enters``, or below in the backward pass.
        latency_s: Round trip, which each sequence waits for.
        first_s: Sending of what goes before the first of them: weights.
        down_s: Of one sequence, as the next two.
        compute_s: Likewise.
        up_s: Likewise.
        last_s: Returning of what comes after the last: gradients of weights.
    """

    row0: Ints
    row1: Ints
    enters: Ints
    leaves: Ints
    latency_s: Floats
    first_s: Floats
    down_s: Floats
    compute_s: Floats
    up_s: Floats
    last_s: Floats

    def turned(self) -> Stops:
        """The same tiles on the way back."""
        return replace(self, enters=self.leaves, leaves=self.enters)

    def and_one_further(self) -> Stops:
        """The same tiles, and once more between the two boundaries that follow."""
        twice = {each.name: np.concatenate([getattr(self, each.name)] * 2) for each in fields(self)}
        twice["enters"] = np.concatenate([self.enters, self.enters + 1])
        twice["leaves"] = np.concatenate([self.leaves, self.leaves + 1])
        return Stops(**twice)

    def end_s(self) -> float:
        """When the last sequence has left and the last gradient is up.

        Where several tiles of a layer have the same sequences, as with slices of features, the next
        layer waits for all of them.
        """
        last = int(max(self.enters.max(), self.leaves.max()))
        ready = np.zeros((last + 1, int(self.row1.max())))
        hops, hop = np.unique(
            np.stack([self.enters, self.leaves], axis=1), axis=0, return_inverse=True
        )
        is_backward = bool(self.leaves[0] < self.enters[0])
        end_s = 0.0
        for k in range(len(hops))[:: -1 if is_backward else 1]:
            tiles = np.flatnonzero(hop.ravel() == k)
            end_s = max(end_s, self._through(tiles, ready[hops[k, 0]], ready[hops[k, 1]]))
        return end_s

    def _through(self, tiles: Ints, ready: Floats, left: Floats) -> float:
        """Take the sequences of tiles between the same two boundaries from one to the other."""
        n_rows = self.row1[tiles] - self.row0[tiles]
        place = np.arange(int(n_rows.max()))
        is_row = place < n_rows[:, None]
        row = np.where(is_row, self.row0[tiles, None] + place, 0)
        there = np.maximum(ready[row], self.first_s[tiles, None]) + self.latency_s[tiles, None]
        there = np.where(is_row, there, np.inf)
        order = np.argsort(there, axis=1, kind="stable")
        done = np.take_along_axis(there, order, axis=1)
        for each_s in (self.down_s, self.compute_s, self.up_s):
            before = each_s[tiles, None] * place
            done = np.maximum.accumulate(done - before, axis=1) + before + each_s[tiles, None]
        row = np.take_along_axis(row, order, axis=1)
        np.maximum.at(left, row[place < n_rows[:, None]], done[place < n_rows[:, None]])
        last = done[np.arange(len(tiles)), n_rows - 1]
        return float((last + self.last_s[tiles]).max())
