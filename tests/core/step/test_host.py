"""What a step asks of the host."""

from dataclasses import replace

import pytest
from tests.core.step.shapes import LLAMA_2_7B

from cleave.core.fleet import Server
from cleave.core.step.batch import Batch
from cleave.core.step.host import host_needs, require_room
from cleave.core.step.plan import HostNeeds
from cleave.errors import PlanError

BATCH = Batch(tokens=131072, length=4096)


def needs(batch: Batch = BATCH, server: Server | None = None, **how: bool) -> HostNeeds:
    ways = {"recomputes": False, "layers_away": False, **how}
    return host_needs(LLAMA_2_7B, batch, server or Server(), **ways)


def test_adamw_in_fp32_takes_sixteen_bytes_a_parameter_and_the_wires_copy_two() -> None:
    asked = needs()
    state = asked.weights_bytes + asked.gradients_bytes + asked.optimizer_bytes
    assert state == 18 * LLAMA_2_7B.parameters


def test_layer_inputs_of_llama_at_131072_tokens_are_34_gb() -> None:
    # 131,072 tokens x 32 layers x 4,096 features x 2 bytes.
    assert needs(layers_away=True).activation_bytes == 131072 * 32 * 4096 * 2
    assert needs(layers_away=True).activation_bytes == pytest.approx(34.4e9, rel=0.01)


def test_recomputing_keeps_layer_inputs_and_one_layer() -> None:
    all_kept, again = needs(), needs(recomputes=True)
    inputs = 131072 * 32 * 4096 * 2
    assert again.activation_bytes == inputs + all_kept.activation_bytes / 32
    assert again.memory_traffic_bytes > all_kept.memory_traffic_bytes


def test_adapters_need_no_optimiser_for_frozen_weights() -> None:
    asked = needs(replace(BATCH, lora_rank=16))
    trained = replace(BATCH, lora_rank=16).trained_parameters(LLAMA_2_7B)
    assert asked.gradients_bytes == 4 * trained
    assert asked.weights_bytes == 4 * trained + 2 * LLAMA_2_7B.parameters


def test_seconds_are_traffic_over_bandwidth() -> None:
    asked = needs(server=Server(memory_bytes_per_s=1e11))
    assert asked.seconds == asked.memory_traffic_bytes / 1e11


def test_a_host_without_room_is_told_what_would_fit() -> None:
    server = Server(memory_bytes=150e9)
    asked = needs(server=server, layers_away=True)  # 121 GB of weights and state, 34 of inputs
    with pytest.raises(PlanError, match=r"needs 156 GB.*at most 106496 tokens"):
        require_room(asked, BATCH, server)
    small = replace(BATCH, tokens=106496)
    require_room(needs(small, server, layers_away=True), small, server)


def test_a_host_too_small_for_the_weights_is_not_told_to_use_fewer_tokens() -> None:
    server = Server(memory_bytes=64e9)
    with pytest.raises(PlanError, match="LoRA") as error:
        require_room(needs(server=server, layers_away=True), BATCH, server)
    assert "tokens a step" not in str(error.value)
