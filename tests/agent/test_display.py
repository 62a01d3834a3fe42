"""What an owner sees: each change once, a current line on a terminal, local agents silent."""

import io

from cleave.agent.display import LineDisplay, QuietDisplay, Work


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


WORK = Work(tasks_done=3, received_bytes=2_000_000, sent_bytes=500, held_bytes=10**9)


def test_each_change_is_one_line_with_its_time() -> None:
    stream = io.StringIO()
    display = LineDisplay(stream)
    for text in ("serving", "serving", "paused: on battery, 80 %"):
        display.state(text)
    display.work(WORK)
    first, second = stream.getvalue().splitlines()
    assert first.endswith("  serving")
    assert second.endswith("  paused: on battery, 80 %")


def test_a_terminal_has_one_current_line_below_the_changes() -> None:
    stream = Terminal()
    display = LineDisplay(stream)
    display.work(WORK)
    assert stream.getvalue() == "\r\x1b[K3 tasks, 2 MB in, 500 B out, 1 GB held"
    display.state("left")
    assert stream.getvalue().count("\n") == 1


def test_an_agent_that_a_program_started_speaks_only_of_failure() -> None:
    stream = io.StringIO()
    display = QuietDisplay(stream)
    display.state("serving")
    display.work(WORK)
    display.failure("the join token is wrong")
    assert stream.getvalue() == "agent: the join token is wrong\n"
