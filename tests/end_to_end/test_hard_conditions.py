"""Odd numbers, models, sizes and networks: a clear word, and the run goes on where it can."""

from __future__ import annotations

import copy
import logging
import socket
from collections.abc import Iterator

import pytest
import torch
from tests.end_to_end.processes import agent
from tests.end_to_end.training import mean_square, training
from tests.end_to_end.waiting import BOUND_S
from tests.end_to_end.works import Underway
from tests.train.parity import assert_parity, train
from torch import nn

from cleave.core.program import Op, Program, Ref
from cleave.core.work import Along, Operand, Result, Work
from cleave.server.fleet import Fleet
from cleave.train.offload import offload

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """One device that lends as little as it may: about one weight of the model."""
    with (
        Fleet("127.0.0.1", without_devices="wait") as fleet,
        agent(fleet.join_url, "--memory", "4MB"),
    ):
        fleet.wait(timeout=BOUND_S)
        yield fleet


def test_a_device_that_lends_next_to_nothing_is_given_small_tasks(fleet: Fleet) -> None:
    before = fleet.stats()
    with training(fleet) as steps:
        steps.must_be_right()
    assert fleet.stats().device_tasks - before.device_tasks > 5  # of five GEMMs
    assert fleet.stats().host_tasks == 0
    assert fleet.devices[0].failures == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_all_numbers_travel_unchanged_down_to_the_bits_of_a_nan(
    fleet: Fleet, dtype: torch.dtype
) -> None:
    every_half = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).reshape(64, -1)
    numbers = every_half.view(dtype)
    assert numbers.isnan().any()
    given = fleet.adopt(numbers)
    out = fleet.allocate(given.n_rows, given.n_cols, given.dtype)
    work = Work(
        name="copy",
        n_rows=given.n_rows,
        n_cols=given.n_cols,
        inputs=(Operand(matrix=given, rows=Along.ROWS, cols=Along.COLS),),
        results=(Result(matrix=out, rows=Along.ROWS, cols=Along.COLS),),
        program=Program(n_inputs=1, ops=(Op("clone", (Ref(0),)),), outputs=(1,)),
        flops_per_cell=1.0,
    )
    result = Underway(fleet, [given], out, (work,)).result()
    assert result.view(torch.uint16).equal(every_half)


def test_what_cannot_go_out_stays_with_a_word_and_the_rest_is_trained(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    class Turned(nn.Module):
        """A frozen layer of complex numbers between real ones."""

        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Linear(8, 8, dtype=torch.complex64).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            turned: torch.Tensor = self.turn(torch.complex(x, torch.zeros_like(x)))
            return turned.abs()

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(1, 2, 5, padding=2), nn.Flatten(), nn.Linear(32, 8), Turned(), nn.Linear(8, 4)
    )
    batches = [torch.randn(6, 1, 16) for _ in range(2)]
    alone = train(copy.deepcopy(model), batches, mean_square)
    before = fleet.stats().device_tasks
    offload(model, fleet, "devices")
    assert "stays on the host: 3.turn (its weight is torch.complex64)" in caplog.text
    assert_parity(train(model, batches, mean_square), alone)
    assert fleet.stats().device_tasks > before


def test_a_model_without_anything_to_offload_is_mentioned(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    model = offload(nn.Sequential(nn.Conv1d(1, 2, 5), nn.ReLU()), fleet, "devices")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith("Sequential has no linear layer that can go out")
    model(torch.ones(1, 1, 8)).sum().backward()


def test_an_agent_with_a_wrong_token_ends_and_says_what_to_do(fleet: Fleet) -> None:
    with agent(f"http://127.0.0.1:{fleet.port}/join/guessed") as stranger:
        assert stranger.ends() == 2
        assert stranger.lines[-1].endswith(
            "the server will not have this device: the join token is wrong: "
            "copy the whole join line that the server printed"
        )
    assert fleet.n_devices == 1


def test_an_agent_whose_server_cannot_be_reached_says_why_and_comes_when_it_can() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with agent(f"http://127.0.0.1:{port}/join/t", "--name", "early") as early:
        early.says(
            f"TCP: 127.0.0.1:{port} refuses the connection: is the server running, and on this "
            "port?; trying again in"
        )
        with Fleet("127.0.0.1", port, "t") as fleet:
            fleet.wait(timeout=BOUND_S)
            assert fleet.devices[0].name == "early"


def test_an_agent_that_may_not_try_again_ends_with_the_reason() -> None:
    with agent("http://no.such.host.invalid:7077/join/t", "--once") as hopeless:
        assert hopeless.ends() == 1
        assert hopeless.lines[-1].endswith(
            "name: no address is known for 'no.such.host.invalid': check the spelling and the "
            "network"
        )
