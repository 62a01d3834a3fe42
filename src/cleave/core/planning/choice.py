"""Which form of a work, cut how, on which devices: the plan of one operation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cleave.core.device import DeviceProfile
from cleave.core.fleet import Fleet
from cleave.core.layout import Layout, Placement
from cleave.core.matrix import Region
from cleave.core.planning.bound import lower_bound_s
from cleave.core.planning.cost import CostForm, FleetArrays
from cleave.core.planning.partition import partition
from cleave.core.planning.price import Holdings, price
from cleave.core.planning.slabs import FEWEST_FOR_SLABS, cut_slabs, numbers_of_slabs
from cleave.core.work import Fate, Work
from cleave.errors import PlanError

_NEAR = 1.05  # plans this close to the fastest are told apart by their bytes
_CACHE_SIZE = 1024


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan taken: index of the form, who does which tile, and what it is expected to cost.

    Attributes:
        form: Its place among those asked for; further numbers are forms in slabs.
        work: The form itself.
        layout: Who does which tile.
        seconds: When it is done.
        n_bytes: What is moved.
    """

    form: int
    work: Work
    layout: Layout
    seconds: float
    n_bytes: int


class Planner:
    """Chooses plans for one fleet as it stands; plans of equal shapes are made once per epoch."""

    def __init__(self) -> None:
        """Begin with an empty cache."""
        self._cache: dict[tuple[object, ...], Layout] = {}
        self._slabs: dict[tuple[object, ...], dict[int, Layout]] = {}

    def forget(self) -> None:
        """The fleet or its rates have changed."""
        self._cache.clear()
        self._slabs.clear()

    def choose(
        self,
        forms: Sequence[Work],
        hints: Sequence[Layout],
        devices: Sequence[tuple[DeviceProfile, Holdings]],
    ) -> Choice | None:
        """The plan that is done first, counting what devices hold; of near equals the fewest bytes.

        Returns:
            None if no device can do any of it.
        """
        choices: list[Choice] = []
        for index, work in enumerate(forms):
            able = [pair for pair in devices if pair[0].can_run(work.ops, work.dtype)]
            if not able:
                continue
            layouts = [self._fresh(work, [profile for profile, _ in able])]
            if index < len(hints) and _fits(hints[index], work, able):
                layouts.append(hints[index])
            for layout in layouts:
                if layout:
                    seconds, n_bytes = price(work, layout, able)
                    choices.append(Choice(index, work, layout, seconds, n_bytes))
        fastest_s = min((choice.seconds for choice in choices), default=math.inf)
        choices += self._in_slabs(forms, devices, fastest_s)
        if not choices:
            return None
        fastest = min(choice.seconds for choice in choices)
        near = [choice for choice in choices if choice.seconds <= _NEAR * fastest]
        return min(near, key=lambda choice: (choice.n_bytes, choice.form))

    def tiles(self, work: Work, region: Region, profiles: Sequence[DeviceProfile]) -> Layout:
        """A fresh cut of part of a slab of a work; empty if no device can hold any of it."""
        try:
            cut = partition(
                CostForm.of(work),
                Fleet(tuple(profiles)),
                work.dtype,
                sides=(region.n_rows, region.n_cols),
                quanta=(work.row_quantum, work.col_quantum),
            )
        except PlanError:
            return ()
        return tuple(
            Placement(_moved(placement.tile, region), placement.device_id)
            for placement in cut.tiles
        )

    def _tiles_of_slabs(self, work: Work, profiles: Sequence[DeviceProfile]) -> Layout:
        """A cut of every slab among devices of its own, or among all if those are too few."""
        fleet = FleetArrays.of(Fleet(tuple(profiles)), work.dtype)
        slabs = work.rectangles
        try:
            found = cut_slabs(
                CostForm.of(work),
                fleet,
                (work.n_rows, work.slab_cols),
                (work.row_quantum, work.col_quantum),
                n_slabs=len(slabs),
            )
        except PlanError:
            layouts = [self.tiles(work, slab, profiles) for slab in slabs]
            return tuple(itertools.chain(*layouts)) if all(layouts) else ()
        ids = fleet.device_id[found.cells[:, 0]].tolist()
        spans = found.cells[:, 1:].tolist()
        return tuple(
            Placement(_moved(Region(*span), slabs[slab]), device_id)
            for device_id, slab, span in zip(ids, found.slab.tolist(), spans, strict=True)
        )

    def _in_slabs(
        self,
        forms: Sequence[Work],
        devices: Sequence[tuple[DeviceProfile, Holdings]],
        fastest_s: float,
    ) -> Iterator[Choice]:
        """Plans with the inner axis in slabs, if any may be done sooner than others."""
        if len(devices) < FEWEST_FOR_SLABS:
            return
        whole = next((work for work in forms if _may_be_in_slabs(work)), None)
        able = [pair for pair in devices if whole and pair[0].can_run(whole.ops, whole.dtype)]
        if whole is None or len(able) < FEWEST_FOR_SLABS:
            return
        found = self._slab_layouts(whole, [profile for profile, _ in able], fastest_s)
        for index, (count, layout) in enumerate(found.items()):
            work = whole.in_slabs(count)
            yield Choice(len(forms) + index, work, layout, *price(work, layout, able))

    def _slab_layouts(
        self, whole: Work, profiles: Sequence[DeviceProfile], fastest_s: float
    ) -> dict[int, Layout]:
        """By number of slabs, the plans whose bound is below a time; told once per epoch."""
        if whole.slabs is None:
            return {}
        key = self._key(whole, profiles)
        if key not in self._slabs:
            sizes = (whole.n_rows, whole.n_cols, whole.slabs.n_inner)
            fleet = FleetArrays.of(Fleet(tuple(profiles)), whole.dtype)
            self._slabs[key] = {}
            for count in numbers_of_slabs(sizes, fleet, len(fleet)):
                work = whole.in_slabs(count)
                bound_s = lower_bound_s(CostForm.of(work), fleet, work.n_rows, work.n_cols)
                if bound_s < fastest_s and (layout := self._tiles_of_slabs(work, profiles)):
                    self._slabs[key][count] = layout
        return self._slabs[key]

    def _fresh(self, work: Work, profiles: Sequence[DeviceProfile]) -> Layout:
        key = self._key(work, profiles)
        layout = self._cache.get(key)
        if layout is None:
            if len(self._cache) >= _CACHE_SIZE:
                self.forget()
            if len(work.rectangles) > 1:
                layout = self._tiles_of_slabs(work, profiles)
            else:
                layout = self.tiles(work, work.whole, profiles)
            self._cache[key] = layout
        return layout

    @staticmethod
    def _key(work: Work, profiles: Sequence[DeviceProfile]) -> tuple[object, ...]:
        return (
            CostForm.of(work),
            work.n_rows,
            work.n_cols,
            work.slab_cols,
            work.row_quantum,
            work.col_quantum,
            work.dtype,
            tuple(profile.device_id for profile in profiles),
        )


def _may_be_in_slabs(work: Work) -> bool:
    """Whether its inner axis is whole, and its results may be sums of what comes back."""
    is_returned = all(result.fate is Fate.RETURNED for result in work.results)
    return work.slabs is not None and work.slabs.count == 1 and is_returned


def _fits(layout: Layout, work: Work, able: Sequence[tuple[DeviceProfile, Holdings]]) -> bool:
    present = {profile.device_id for profile, _ in able}
    return (
        bool(layout)
        and all(placement.device_id in present for placement in layout)
        and sum(placement.tile.area for placement in layout) == work.whole.area
        and all(work.whole.contains(placement.tile) for placement in layout)
    )


def _moved(tile: Region, corner: Region) -> Region:
    return Region(
        tile.row0 + corner.row0,
        tile.row1 + corner.row0,
        tile.col0 + corner.col0,
        tile.col1 + corner.col0,
    )
