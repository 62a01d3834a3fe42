"""What the parts of a step cost, byte by byte."""

import pytest
from tests.core.step.shapes import TINY

from cleave.core.matrix import DType
from cleave.core.planning.cost import CostForm, tile_cost
from cleave.core.step.batch import Batch
from cleave.core.step.forms import (
    attention_forms,
    backward_on_tiles,
    forward_held,
    gemm_forms,
    head_forms,
    head_forms_alone,
    holding,
)

BATCH = Batch(tokens=12, length=4)  # three sequences


def test_a_product_reads_both_operands_and_returns_its_tile() -> None:
    whole, over_kn, over_mk = gemm_forms(12, 16, 8, DType.BF16)
    assert whole.down == (0, 2 * 8, 2 * 8, 0)
    assert whole.up == (0, 0, 0, 2)
    assert whole.flops == 2 * 8
    assert over_kn.up == (0, 0, 2 * 12, 0)  # partial sums of all 12 rows, once per column
    assert over_mk.up == (0, 2 * 16, 0, 0)


def test_weights_that_lie_there_do_not_travel_but_take_their_room() -> None:
    whole, *_ = gemm_forms(12, 16, 8, DType.BF16)
    held = forward_held(whole, scale=3)
    assert held.down == (0, 2 * 8, 0, 0)
    assert held.memory == (0, 2 * 8, 3 * 2 * 8, 2)


def test_backward_on_the_same_tiles_gets_the_outputs_gradient_alone() -> None:
    whole, *_ = gemm_forms(12, 16, 8, DType.BF16)
    backward = backward_on_tiles(whole, trains=True)
    assert backward.down == (0, 0, 0, 2)
    assert backward.up == (0, 2 * 8, 2 * 8, 0)  # dX of the rows, dW of the columns
    assert backward.flops == 2 * whole.flops
    assert backward_on_tiles(whole, trains=False).up == (0, 2 * 8, 0, 0)


def test_operands_that_stay_are_counted_beside_the_others() -> None:
    whole, *_ = gemm_forms(12, 16, 8, DType.BF16)
    assert holding(whole, 5, 7).memory == (0, 5 * 16, 7 * 16, 2)


def test_attention_sends_no_scores() -> None:
    forward, backward = attention_forms(TINY, BATCH)
    # A KV head has two query heads; 4 positions of 2 features, 2 bytes each.
    q, kv = 2 * 4 * 2 * 2, 4 * 2 * 2
    lse = 4 * 2 * 4
    assert forward.down == (0, 0, 0, q + 2 * kv)
    assert forward.up == (0, 0, 0, q + lse)
    assert forward.flops == TINY.attention_flops(12, 4) / (3 * 2)
    assert backward.down == (0, 0, 0, 3 * q + 2 * kv + lse)  # q, out and its gradient; k, v
    assert backward.up == (0, 0, 0, q + 2 * kv)


def test_the_head_returns_eight_bytes_a_token_and_block_never_logits() -> None:
    forward, backward = head_forms(TINY, BATCH)
    assert forward.up == (0, 8, 0, 0)
    assert forward.down == (0, 2 * 8 + 4, 2 * 8, 0)
    assert backward.down == (0, 4, 0, 0)
    assert backward.up == (0, 2 * 8, 2 * 8, 0)
    assert forward.flops + backward.flops == 8 * 8  # logits twice, and both gradients


def test_a_frozen_head_stays_where_it_is() -> None:
    forward, backward = head_forms(TINY, Batch(tokens=12, length=4, lora_rank=2))
    assert forward.down[2] == 0
    assert backward.up[2] == 0


@pytest.mark.parametrize("rank", [0, 2])
def test_a_head_of_which_nothing_stays_is_sent_twice(rank: int) -> None:
    forward, backward = head_forms_alone(TINY, Batch(tokens=12, length=4, lora_rank=rank))
    assert forward.down == (0, 2 * 8 + 4, 2 * 8, 0)
    assert backward.down == (0, 2 * 8 + 4 + 4, 2 * 8, 0)  # and each token's log-sum-exp


@pytest.mark.parametrize("terms", ["down", "up", "memory"])
def test_a_tile_cut_in_two_never_costs_less(terms: str) -> None:
    forms: list[CostForm] = [*gemm_forms(12, 16, 8, DType.BF16), *head_forms(TINY, BATCH)]
    for form in forms:
        cost = getattr(form, terms)
        assert 2 * tile_cost(cost, 6, 4) >= tile_cost(cost, 12, 4)
        assert 2 * tile_cost(cost, 6, 4) >= tile_cost(cost, 6, 8)
