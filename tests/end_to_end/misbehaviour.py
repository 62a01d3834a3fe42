"""What a device may send in place of an honest result; each is an `Answer` of a fake agent."""

from __future__ import annotations

import numpy as np
from tests.end_to_end.fake_agent import Answer, FakeAgent, finish, hello, send_results

from cleave.wire.codec import encode
from cleave.wire.messages import (
    Cancelled,
    Failed,
    Finished,
    Goodbye,
    Paused,
    Refused,
    ResultPiece,
    RunTask,
)

COMPUTE_S = 0.001


async def wrong_size(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    spec = task.outputs[0]
    await agent.send(ResultPiece(task.task_id, 0, 0, spec.n_rows, 0, spec.n_cols), results[0][:-4])


async def wrong_dtype(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    spec = task.outputs[0]
    half = np.frombuffer(results[0], np.float32).astype(np.float16).tobytes()
    await agent.send(ResultPiece(task.task_id, 0, 0, spec.n_rows, 0, spec.n_cols), half)


async def wrong_shape(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    spec = task.outputs[0]
    await agent.send(ResultPiece(task.task_id, 0, 0, spec.n_cols, 0, spec.n_rows), results[0])


async def no_such_output(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await agent.send(ResultPiece(task.task_id, 1, 0, 1, 0, 1), results[0][:4])


async def out_of_order(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    n_cols = task.outputs[0].n_cols
    await agent.send(ResultPiece(task.task_id, 0, 1, 2, 0, n_cols), results[0][: 4 * n_cols])


async def same_piece_twice(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    n_cols = task.outputs[0].n_cols
    for _ in range(2):
        await agent.send(ResultPiece(task.task_id, 0, 0, 1, 0, n_cols), results[0][: 4 * n_cols])


async def piece_of_no_task(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await agent.send(ResultPiece(task.task_id + 1000, 0, 0, 1, 0, 1), results[0][:4])


async def piece_without_elements(agent: FakeAgent, task: RunTask, _results: list[bytes]) -> None:
    await agent.send(ResultPiece(task.task_id, 0, 0, 1, 0, 1))


async def finished_too_soon(agent: FakeAgent, task: RunTask, _results: list[bytes]) -> None:
    await agent.send(Finished(task.task_id, COMPUTE_S, 0))


async def finished_no_task(agent: FakeAgent, task: RunTask, _results: list[bytes]) -> None:
    await agent.send(Finished(task.task_id + 1000, COMPUTE_S, 0))


async def finished_twice(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await finish(agent, task, results)
    await agent.send(Finished(task.task_id, COMPUTE_S, 0))


async def finished_in_no_time(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await send_results(agent, task, results)
    await agent.send(Finished(task.task_id, float("nan"), 0))


async def dropped_unasked(agent: FakeAgent, task: RunTask, _results: list[bytes]) -> None:
    await agent.send(Cancelled(task.task_id))


async def hello_again(agent: FakeAgent, _task: RunTask, _results: list[bytes]) -> None:
    await agent.send(hello("http://host:1/join/token"))


async def text(agent: FakeAgent, _task: RunTask, _results: list[bytes]) -> None:
    await agent.socket.send_str("finished")


async def too_large(agent: FakeAgent, _task: RunTask, _results: list[bytes]) -> None:
    await agent.socket.send_bytes(bytes(18 << 20))


async def cut_short(agent: FakeAgent, task: RunTask, _results: list[bytes]) -> None:
    await agent.socket.send_bytes(encode(Finished(task.task_id, COMPUTE_S, 0))[:-3])


async def servers_message(agent: FakeAgent, task: RunTask, _results: list[bytes]) -> None:
    await agent.send(task)


async def nonsense(agent: FakeAgent, _task: RunTask, _results: list[bytes]) -> None:
    await agent.socket.send_bytes(bytes(range(256)))


async def wrong_numbers(agent: FakeAgent, task: RunTask, results: list[bytes]) -> None:
    await finish(agent, task, [bytes(len(result)) for result in results])


async def fails(agent: FakeAgent, task: RunTask, _results: list[bytes]) -> None:
    await agent.send(Failed(task.task_id, "no luck"))


async def pauses(agent: FakeAgent, _task: RunTask, _results: list[bytes]) -> None:
    await agent.send(Paused("on battery, 80 %"))


async def leaves(agent: FakeAgent, _task: RunTask, _results: list[bytes]) -> None:
    await agent.send(Goodbye("going home"))


async def is_silent(_agent: FakeAgent, _task: RunTask, _results: list[bytes]) -> None:
    return


def refuses(reason: str) -> Answer:
    """Will not do a task; for ``"missing"`` it has none of the blocks."""

    async def answer(agent: FakeAgent, task: RunTask, _results: list[bytes]) -> None:
        handles = tuple(spec.handle for spec in task.inputs) if reason == "missing" else ()
        await agent.send(Refused(task.task_id, reason, handles))

    return answer
