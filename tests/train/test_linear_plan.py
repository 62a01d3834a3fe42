"""How blocks of one GEMM of a layer serve the others."""

import pytest

from cleave.core.layout import Placement
from cleave.core.matrix import DType, Matrix, Region
from cleave.core.operations import Gemm
from cleave.core.work import Operand, Work
from cleave.train.linear_plan import LinearPlan, hints, taken

ROWS, INS, OUTS = 6, 4, 10


def matrix(tensor_id: int, n_rows: int, n_cols: int) -> Matrix:
    return Matrix(tensor_id, n_rows, n_cols, DType.F32)


def gemms(plan: LinearPlan) -> tuple[Gemm, Gemm, Gemm]:
    x, y_grad = matrix(1, ROWS, INS), matrix(3, ROWS, OUTS)
    stored = (OUTS, INS) if plan.out_in else (INS, OUTS)
    weight = matrix(2, *stored)
    return (
        plan.forward(x, weight, matrix(4, ROWS, OUTS)),
        plan.input_grad(y_grad, weight, matrix(5, ROWS, INS)),
        plan.weight_grad(x, y_grad, matrix(6, *stored)),
    )


def regions(work: Work, tile: Region) -> dict[int, Region]:
    return {operand.matrix.tensor_id: Operand.region(operand, tile) for operand in work.inputs}


@pytest.mark.parametrize("form", [0, 1, 2])
@pytest.mark.parametrize("out_in", [True, False])
def test_what_a_device_holds_from_forward_is_what_it_needs_in_backward(
    out_in: bool, form: int
) -> None:
    plan = LinearPlan(out_in)
    forward, input_grad, weight_grad = gemms(plan)
    tile = Region(1, 3, 2, 4)
    held = regions(forward.forms()[form], tile)
    related = taken(plan.forward_axes, form, (Placement(tile, 7),))
    needed: dict[int, Region] = {}
    for gemm, axes in (
        (input_grad, plan.input_grad_axes),
        (weight_grad, plan.weight_grad_axes),
    ):
        layouts = hints(axes, related)
        (chosen,) = [i for i, layout in enumerate(layouts) if layout]
        assert layouts[chosen][0].device_id == 7
        for tensor_id, region in regions(gemm.forms()[chosen], layouts[chosen][0].tile).items():
            assert needed.setdefault(tensor_id, region) == region  # dY is the same for both
    assert needed[1] == held[1]
    assert needed[2] == held[2]


def test_without_related_work_there_are_no_hints() -> None:
    assert hints(("rows", "outs", "ins"), None) == ()
