"""What work reads stays until the work has ended, whoever waits for it."""

from __future__ import annotations

import torch
from tests.train.local_runtime import LocalRuntime

from cleave.core.layout import Layout
from cleave.train.held import Held, Orphans


class Ending:
    """Work that, when it ends, notes how many matrices there still are."""

    done = False
    form = 0
    layout: Layout = ()

    def __init__(self, fleet: LocalRuntime) -> None:
        self._fleet = fleet
        self.n_matrices_at_its_end = -1

    def wait(self) -> None:
        self.n_matrices_at_its_end = len(self._fleet)


def test_work_left_behind_keeps_its_matrices_until_it_has_ended(fleet: LocalRuntime) -> None:
    orphans, pending = Orphans(), Ending(fleet)
    read = [Held.adopt(fleet, torch.ones(2, 3))]
    written = (Held.adopt(fleet, torch.ones(3, 2)),)
    orphans.append((pending, read, written))
    del read, written
    orphans.wait()
    assert pending.n_matrices_at_its_end == 2
    assert len(fleet) == 0
