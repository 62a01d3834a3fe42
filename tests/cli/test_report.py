"""What a run came to."""

from rich.console import Console

from cleave.cli.churn import ChurnCost
from cleave.cli.report import loss_table, share_line
from cleave.server.status import FleetStats
from cleave.train.loop import StepRecord


def records(*losses: float) -> list[StepRecord]:
    return [StepRecord(step, loss, 0.5) for step, loss in enumerate(losses)]


def test_losses_stand_side_by_side_with_the_worst_difference() -> None:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(loss_table(records(4.0, 3.0, 2.0), records(4.0, 3.0, 2.002)))
    lines = capture.get().splitlines()
    assert lines[1].split() == ["1", "4.00000", "4.00000", "0.0e+00"]
    assert lines[3].split() == ["3", "2.00000", "2.00200", "1.0e-03"]
    assert " ".join(lines[-1].split()) == "median 500 ms/step 500 ms/step worst 1.0e-03"


def stats(device_flops: float = 0.0, host_flops: float = 0.0, bytes_down: int = 0) -> FleetStats:
    given = {"device_flops": device_flops, "host_flops": host_flops, "bytes_down": bytes_down}
    zeros = dict.fromkeys(FleetStats.__dataclass_fields__, 0)
    return FleetStats(**{**zeros, **given})  # type: ignore[arg-type]


def test_the_share_counts_what_the_host_did_for_itself_and_for_devices() -> None:
    line = share_line(
        stats(device_flops=98e9, host_flops=1e9, bytes_down=5_000_000), host_flops=1e9
    )
    assert line.startswith("Devices did 98.00% of 100 GFLOP in matrix products and attention, ")
    assert "the host 2 GFLOP" in line
    assert "5 MB went down" in line


def test_an_empty_run_has_no_share() -> None:
    assert share_line(stats(), host_flops=0).startswith("Devices did 0.00%")


def test_the_cost_of_churn_is_one_sentence() -> None:
    assert str(ChurnCost(19, 3, 2e9, 0.25)) == (
        "Step 20 lost a device with 3 tasks (2 GFLOP) in hand, which others did again; "
        "the step took 250 ms more than the median."
    )
    assert "with 1 task " in str(ChurnCost(0, 1, 1.0, 0.0))
    assert "12 ms less than the median" in str(ChurnCost(0, 0, 0.0, -0.012))
