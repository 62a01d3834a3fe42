"""Draws the pictures of docs/planner.md from real plans: ``python docs/pictures.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cleave.catalog import fleets
from cleave.core.fleet import Fleet
from cleave.core.matrix import DType
from cleave.core.planning.cost import CostForm, phases
from cleave.core.planning.partition import Partition, partition
from cleave.core.step.forms import gemm_forms

FOLDER = Path(__file__).parent
TOKENS, FEATURES_IN, FEATURES_OUT = 16_384, 4096, 11_008  # Llama-2-7B, gate of the MLP
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
COLORS = ("#79b8ff", "#ffd33d", "#85e89d", "#ffab70", "#b392f0", "#f97583", "#7fdbca", "#d6dce2")
PHASES = {"down": "#1f6feb", "compute": "#8b98a5", "up": "#1a7f37"}
STYLE = (
    "<style>.t{font-size:14px;fill:#1c2733;font-weight:600}.s{font-size:12px;fill:#51606f}"
    ".n{font-size:12px;fill:#1c2733;font-weight:600;text-anchor:middle}</style>"
)


def tiling_svg(n_devices: int = 16, seed: int = 3) -> str:
    """A product cut for unequal devices: their tiles, and how busy each device is meanwhile."""
    fleet = fleets.log_normal(n_devices, seed, memory_bytes=8 << 30)
    form, *_ = gemm_forms(TOKENS, FEATURES_OUT, FEATURES_IN, DType.BF16)
    plan = partition(form, fleet, DType.BF16, (TOKENS, FEATURES_OUT))
    title = f"One product, {n_devices} unequal devices"
    text = (
        f"The result of {TOKENS} tokens and {FEATURES_OUT} features cut into one tile per device. "
        "Tiles differ in size with the devices' links and processors, so that all finish together."
    )
    body = [*_tiles(plan), *_bars(plan, form, fleet)]
    return _svg(880, 450, title, text, body)


def _tiles(plan: Partition) -> Iterator[str]:
    left, top, width, height = 24.0, 56.0, 400.0, 360.0
    x_scale, y_scale = width / FEATURES_OUT, height / TOKENS
    yield _text("t", left, 32, f"C: {TOKENS:,} tokens x {FEATURES_OUT:,} features")
    for placement in plan.tiles:
        tile = placement.tile
        x, y = left + tile.col0 * x_scale, top + tile.row0 * y_scale
        w, h = tile.n_cols * x_scale, tile.n_rows * y_scale
        color = COLORS[placement.device_id % len(COLORS)]
        yield (
            f'<rect class="tile" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" '
            f'fill="{color}" stroke="#ffffff" stroke-width="1.5"/>'
        )
        if h > 12:
            yield _text("n", x + w / 2, y + h / 2 + 4, str(placement.device_id))


def _bars(plan: Partition, form: CostForm, fleet: Fleet) -> Iterator[str]:
    """Of each device three bars, as long as its link and its processor are busy."""
    left, top, width, step = 630.0, 70.0, 220.0, 22.0
    ratio = plan.makespan_s / plan.bound_s
    done = f"Done after {plan.makespan_s:.1f} s, {ratio:.3f} x the lower bound"
    yield _text("t", 452, 32, done)
    yield _text("s", 476, 56, "down / up, Mbit/s")
    tiles = {placement.device_id: placement.tile for placement in plan.tiles}
    for i, device in enumerate(fleet.devices):
        y = top + i * step
        yield _text("n", 460, y + 12, str(device.device_id))
        links = (device.downlink_bytes_per_s, device.uplink_bytes_per_s)
        yield _text("s", 476, y + 12, " / ".join(f"{rate * 8e-6:.0f}" for rate in links))
        if device.device_id not in tiles:
            yield _text("s", left, y + 12, "left out")
            continue
        took = phases(form, tiles[device.device_id], device, DType.BF16)
        seconds = (took.down_s, took.compute_s, took.up_s)
        for j, (color, busy_s) in enumerate(zip(PHASES.values(), seconds, strict=True)):
            yield _bar(left, y + 5 * j, width * busy_s / plan.makespan_s, 4, color)
    for x, (name, color) in zip((left, left + 66, left + 150), PHASES.items(), strict=True):
        yield _bar(x, 46, 10, 10, color)
        yield _text("s", x + 15, 56, name)
    end_x, end_y = left + width, top + step * len(fleet.devices)
    yield f'<path d="M{end_x} {top - 4}V{end_y}" stroke="#b7c2cd"/>'


def _bar(x: float, y: float, width: float, height: float, color: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{height}" fill="{color}"/>'


def _text(css_class: str, x: float, y: float, words: str) -> str:
    return f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}">{words}</text>'


def _svg(width: int, height: int, title: str, text: str, body: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="{FONT}" role="img" aria-labelledby="title desc">'
    )
    words = f'<title id="title">{title}</title><desc id="desc">{text}</desc>'
    paper = f'<rect width="{width}" height="{height}" rx="10" fill="#f6f8fa"/>'
    return "\n".join([head, words, STYLE, paper, *body, "</svg>", ""])


if __name__ == "__main__":
    (FOLDER / "tiling.svg").write_text(tiling_svg(), encoding="utf-8")
