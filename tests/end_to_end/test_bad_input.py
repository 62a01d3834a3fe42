"""Whatever a device sends, the server lives on, the others are unharmed and the work is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import torch
from tests.end_to_end import misbehaviour as bad
from tests.end_to_end.fake_agent import Answer, fake_agent
from tests.end_to_end.good import Good, Work, eventually, good_fleet
from tests.end_to_end.waiting import BOUND_S
from tests.end_to_end.works import product

from cleave.core.scheduling.settings import SchedulerSettings
from cleave.server.fleet import Fleet
from cleave.wire.messages import Finished, ResultPiece, Resumed

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def good() -> AsyncIterator[Good]:
    async with good_fleet() as found:
        yield found


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (bad.wrong_size, "carries 8188 bytes, expected 8192"),
        (bad.wrong_dtype, "carries 4096 bytes, expected 8192"),
        (bad.wrong_shape, "of a block of 64 x 32: expected whole rows of it"),
        (bad.no_such_output, "returns no output 1"),
        (bad.out_of_order, "does not follow on row 0, column 0"),
        (bad.same_piece_twice, "does not follow on row 1, column 0"),
        (bad.piece_of_no_task, "which it does not have"),
        (bad.piece_without_elements, "a ResultPiece without elements"),
        (bad.finished_too_soon, "finished with its result incomplete"),
        (bad.finished_no_task, "which it does not have"),
        (bad.finished_twice, "which it does not have"),
        (bad.finished_in_no_time, "an unreadable header: Expected `float`"),
        (bad.dropped_unasked, "was dropped unasked"),
        (bad.hello_again, "it said hello twice"),
        (bad.text, "expected binary frames, got text"),
        (bad.too_large, "Message size 18874368 exceeds limit"),
        (bad.cut_short, "a header of 55 bytes in a frame of 60"),
        (bad.servers_message, "an unreadable header: Invalid value 'RunTask'"),
        (bad.nonsense, "does not begin as Cleave's do"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_device_that_breaks_the_protocol_is_closed_and_another_does_its_work(
    good: Good, answer: Answer, reason: str
) -> None:
    await good.rests()
    async with fake_agent(good.url, answer, name=answer.__name__) as device:
        await eventually(lambda: good.fleet.n_devices == 2)
        work = Work(good.fleet)
        await device.is_closed()
        assert device.tasks
        if device.rejected.done():
            assert reason in device.rejected.result().reason
    await eventually(lambda: good.fleet.n_devices == 1)
    assert reason in good.events("left")[-1]
    assert good.fleet.devices[-1].reason == good.events("left")[-1]
    await good.does(work)
    await good.is_unharmed()


async def test_what_a_paused_device_still_sends_changes_no_result(good: Good) -> None:
    fleet = good.fleet
    await good.rests()
    async with fake_agent(good.url, bad.pauses) as device:
        await eventually(lambda: fleet.n_devices == 2)
        under_way = product(fleet, torch.ones(64, 48), torch.ones(48, 32))
        await eventually(lambda: fleet.devices[-1].state == "paused")
        await good.device.resume()
        await asyncio.to_thread(under_way.pending.wait)
        task = device.tasks[0]
        spec = task.outputs[0]
        late = ResultPiece(task.task_id, 0, 0, spec.n_rows, 0, spec.n_cols)
        await device.send(late, bytes(4 * spec.n_rows * spec.n_cols))
        await device.send(Finished(task.task_id, bad.COMPUTE_S, 0))
        await device.send(Resumed())
        await eventually(lambda: fleet.devices[-1].state == "idle")
        assert under_way.result().equal(torch.full((64, 32), 48.0))
    await good.is_unharmed()


@pytest_asyncio.fixture(loop_scope="module")
async def strict() -> AsyncIterator[Fleet]:
    """A fleet that parts with failing devices without long rests before."""
    with Fleet("127.0.0.1", settings=SchedulerSettings(rest_s=1e-4)) as fleet:
        yield fleet


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (bad.fails, "no luck"),
        (bad.refuses("memory"), "memory"),
        (bad.refuses("paused"), "paused"),
        (bad.refuses("missing"), "missing"),
        (bad.refuses("no reason"), "no reason"),
    ],
)
async def test_a_device_that_does_no_task_is_closed_in_the_end_and_the_run_goes_on(
    strict: Fleet, answer: Answer, reason: str
) -> None:
    async with fake_agent(strict.join_url, answer) as device:
        await asyncio.to_thread(strict.wait, 1, BOUND_S)
        n_works = 0
        while not device.gone.is_set():
            await Work(strict).is_right()
            n_works += 1
        rejected = device.rejected.result()
        assert (rejected.code, rejected.retry) == ("failing", False)
    await eventually(lambda: strict.n_devices == 0)
    (status,) = strict.devices
    assert status.tasks == 0
    assert status.failures >= SchedulerSettings().max_failures_in_row
    assert status.reason == rejected.reason
    assert reason in status.reason
    assert strict.stats().host_tasks == n_works
