"""Work whose right result is known: one product, and a chain of products that takes its time."""

from __future__ import annotations

import torch
from tests.end_to_end.waiting import BOUND_S, until

from cleave.core.matrix import Matrix
from cleave.core.operations import Gemm
from cleave.core.program import Op, Program, Ref
from cleave.core.work import Along, Operand, Result, Work
from cleave.server.fleet import Fleet


class Underway:
    """Work on a fleet, and what must come out of it."""

    def __init__(
        self, fleet: Fleet, inputs: list[Matrix], out: Matrix, forms: tuple[Work, ...]
    ) -> None:
        self.fleet = fleet
        self._inputs = inputs
        self._out = out
        self.pending = fleet.submit(forms)

    @property
    def done(self) -> bool:
        return self.pending.done

    def result(self, within_s: float = BOUND_S) -> torch.Tensor:
        """What came out; the matrices are released."""
        until(lambda: self.pending.done, within_s)
        try:
            self.pending.wait()
            return self.fleet.tensor(self._out).clone()
        finally:
            for matrix in (*self._inputs, self._out):
                self.fleet.release(matrix)


def product(fleet: Fleet, a: torch.Tensor, b: torch.Tensor, n_slabs: int = 0) -> Underway:
    """``a @ b`` on the devices, with the inner axis in so many slabs if a number is given."""
    left, right = fleet.adopt(a), fleet.adopt(b)
    out = fleet.allocate(a.shape[0], b.shape[1], left.dtype)
    gemm = Gemm(name="product", a=left, b=right, out=out)
    forms = (gemm.forms()[0].in_slabs(n_slabs),) if n_slabs else gemm.forms()
    return Underway(fleet, [left, right], out, forms)


class Chain:
    """Rows that are turned ``n_turns`` columns to the right by as many products, exactly.

    Args:
        n_rows: Rows, each of which any device may do.
        n_turns: Products; 1,000 of them on 64 rows take a processor about a second.
    """

    def __init__(self, n_rows: int = 64, n_turns: int = 2000, size: int = 256) -> None:
        self.n_turns = n_turns
        self.rows = torch.arange(n_rows * size, dtype=torch.float32).reshape(n_rows, size)
        self.turn = torch.roll(torch.eye(size), 1, dims=1)

    @property
    def expected(self) -> torch.Tensor:
        return torch.roll(self.rows, self.n_turns, dims=1)

    def start(self, fleet: Fleet) -> Underway:
        n_rows, size = self.rows.shape
        rows, turn = fleet.adopt(self.rows), fleet.adopt(self.turn)
        out = fleet.allocate(n_rows, size, rows.dtype)
        return Underway(fleet, [rows, turn], out, (self.work(rows, turn, out),))

    def work(self, rows: Matrix, turn: Matrix, out: Matrix) -> Work:
        ops = tuple(Op("mm", (Ref(0 if i == 0 else i + 1), Ref(1))) for i in range(self.n_turns))
        return Work(
            name="chain",
            n_rows=rows.n_rows,
            n_cols=1,
            inputs=(
                Operand(matrix=rows, rows=Along.ROWS, cols=Along.ALL),
                Operand(matrix=turn, rows=Along.ALL, cols=Along.ALL),
            ),
            results=(Result(matrix=out, rows=Along.ROWS, cols=Along.ALL),),
            program=Program(n_inputs=2, ops=ops, outputs=(self.n_turns + 1,)),
            flops_per_cell=2.0 * turn.n_rows**2 * self.n_turns,
        )
