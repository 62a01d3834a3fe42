"""A fleet inside this process: work is cut into uneven tiles, which threads compute."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from cleave.compute.torch_backend import TorchBackend
from cleave.compute.torch_types import DTYPES, wire_dtype
from cleave.core.layout import Layout, Placement
from cleave.core.matrix import BlockRef, DType, Matrix, Region
from cleave.core.work import Work
from cleave.errors import WorkFailedError


class LocalPending:
    """Work under way in a thread."""

    def __init__(self, future: Future[None], form: int, layout: Layout) -> None:
        self._future = future
        self.form = form
        self.layout = layout

    def wait(self) -> None:
        self._future.result(timeout=60)

    @property
    def done(self) -> bool:
        return self._future.done()


@dataclass(frozen=True)
class Submitted:
    """What was asked for and what was made of it."""

    name: str
    form: int
    layout: Layout
    hinted: bool


class LocalRuntime:
    """Does work with torch, in tiles, as `n_devices` imaginary devices that keep every block.

    Args:
        n_devices: Each gets tiles of its own.
        form: Which form to take where no hint decides; None takes another each time.
        wire: Replaces fp32 on the wire.
        worthwhile: What `worthwhile` says.
    """

    def __init__(
        self,
        n_devices: int = 3,
        form: int | None = None,
        wire: DType | None = None,
        worthwhile: bool = True,
    ) -> None:
        self.wire = wire
        self.n_devices = n_devices
        self.submitted: list[Submitted] = []
        self.flops = 0.0
        self.bytes_down = 0
        self.held_back = threading.Event()  # cleared: weight gradients do not start
        self.held_back.set()
        self.fails_on: str | None = None
        self._form = form
        self._worthwhile = worthwhile
        self._tensors: dict[Matrix, torch.Tensor] = {}
        self._ids = itertools.count(1)
        self._turns = itertools.count()
        self._resident: set[tuple[int, BlockRef]] = set()
        self._backend = TorchBackend("cpu")
        self._lock = threading.Lock()
        self._urgent = ThreadPoolExecutor(1)
        self._later = ThreadPoolExecutor(1)

    def __len__(self) -> int:
        """Matrices that were not released."""
        return len(self._tensors)

    def close(self) -> None:
        self.held_back.set()
        self._urgent.shutdown()
        self._later.shutdown()

    def adopt(self, tensor: torch.Tensor) -> Matrix:
        assert tensor.dim() == 2
        assert tensor.is_contiguous()
        assert tensor.device.type == "cpu"
        dtype = wire_dtype(tensor.dtype)
        assert dtype is not None
        return self._register(tensor.detach(), dtype)

    def allocate(self, n_rows: int, n_cols: int, dtype: DType) -> Matrix:
        return self._register(torch.empty(n_rows, n_cols, dtype=DTYPES[dtype]), dtype)

    def tensor(self, matrix: Matrix) -> torch.Tensor:
        return self._tensors[matrix]

    def release(self, matrix: Matrix) -> None:
        del self._tensors[matrix]

    def worthwhile(self, forms: Sequence[Work]) -> bool:
        assert forms
        return self._worthwhile

    def submit(self, forms: Sequence[Work], *, hints: Sequence[Layout] = ()) -> LocalPending:
        hinted = [i for i, layout in enumerate(hints) if layout]
        form = hinted[0] if hinted else self._choose(len(forms))
        work = forms[form]
        layout = hints[form] if hinted else self._cut(work)
        assert sum(p.tile.area for p in layout) == work.n_rows * work.n_cols
        self.submitted.append(Submitted(work.name, form, layout, bool(hinted)))
        pool = self._later if work.priority else self._urgent
        return LocalPending(pool.submit(self._run, work, layout), form, layout)

    def _register(self, tensor: torch.Tensor, dtype: DType) -> Matrix:
        matrix = Matrix(next(self._ids), tensor.shape[0], tensor.shape[1], dtype)
        self._tensors[matrix] = tensor
        return matrix

    def _choose(self, n_forms: int) -> int:
        return next(self._turns) % n_forms if self._form is None else min(self._form, n_forms - 1)

    def _cut(self, work: Work) -> Layout:
        """Uneven rows x two columns, dealt to the devices in turn."""
        devices = itertools.cycle(range(self.n_devices))
        rows = _uneven(work.n_rows, self.n_devices, work.row_quantum)
        cols = _uneven(work.n_cols, 2, work.col_quantum)
        return tuple(
            Placement(Region(r0, r1, c0, c1), next(devices)) for r0, r1 in rows for c0, c1 in cols
        )

    def _run(self, work: Work, layout: Layout) -> None:
        if work.priority:
            assert self.held_back.wait(60)
        if self.fails_on == work.name:
            raise WorkFailedError(f"{work.name}: told to fail")
        sums = [
            torch.zeros(result.matrix.n_rows, result.matrix.n_cols, dtype=self._wide(work))
            if work.is_partial(result)
            else None
            for result in work.results
        ]
        for placement in layout:
            self._run_tile(work, placement, sums)
        for result, total in zip(work.results, sums, strict=True):
            if total is not None:
                self._tensors[result.matrix].copy_(total)

    def _run_tile(
        self, work: Work, placement: Placement, sums: Sequence[torch.Tensor | None]
    ) -> None:
        tile = placement.tile
        inputs = []
        for operand in work.inputs:
            block = operand.block(tile)
            inputs.append(_cells(self._tensors[block.matrix], block.region))
            self._count(placement.device_id, block)
        outputs = self._backend.run(work.program.bind(tile), inputs)
        for result, output, total in zip(work.results, outputs, sums, strict=True):
            region = result.region(tile)
            if total is None:
                _cells(self._tensors[result.matrix], region).copy_(output)
            else:
                _cells(total, region).add_(output.to(DTYPES[result.matrix.dtype]))
        with self._lock:
            self.flops += work.flops(tile)

    def _count(self, device_id: int, block: BlockRef) -> None:
        with self._lock:
            if (device_id, block) not in self._resident:
                self._resident.add((device_id, block))
                self.bytes_down += block.n_bytes

    @staticmethod
    def _wide(work: Work) -> torch.dtype:
        is_double = work.results[0].matrix.dtype is DType.F64
        return torch.float64 if is_double else torch.float32


def _cells(tensor: torch.Tensor, region: Region) -> torch.Tensor:
    return tensor[region.row0 : region.row1, region.col0 : region.col1]


def _uneven(size: int, n_parts: int, quantum: int) -> list[tuple[int, int]]:
    """Spans whose sizes grow like 1, 2, 3 ...; empty ones are left out."""
    total = n_parts * (n_parts + 1) // 2
    cuts = [0]
    for i in range(1, n_parts):
        share = size * (i * (i + 1) // 2) / total
        cuts.append(int(share // quantum) * quantum)
    cuts.append(size)
    return [(a, b) for a, b in itertools.pairwise(cuts) if b > a]
