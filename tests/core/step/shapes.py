"""Models and fleets that the tests of a step share."""

from __future__ import annotations

from cleave.core.device import DeviceProfile
from cleave.core.fleet import Fleet, Server
from cleave.core.matrix import DType
from cleave.core.step.model import ModelShape

LLAMA_2_7B = ModelShape(
    name="llama-2-7b",
    n_layers=32,
    hidden=4096,
    ffn_hidden=11008,
    n_heads=32,
    n_kv_heads=32,
    head_dim=128,
    vocab=32000,
    is_gated=True,
)
TINY = ModelShape(
    name="tiny",
    n_layers=2,
    hidden=8,
    ffn_hidden=16,
    n_heads=4,
    n_kv_heads=2,
    head_dim=2,
    vocab=10,
    is_gated=True,
)


def device(device_id: int, **changes: object) -> DeviceProfile:
    """A device with 100 bytes/s down, 50 up, 1,000 flop/s and plenty of memory."""
    values: dict[str, object] = {
        "device_id": device_id,
        "kind": "pc",
        "flops_per_s": {DType.BF16: 1000.0},
        "downlink_bytes_per_s": 100.0,
        "uplink_bytes_per_s": 50.0,
        "memory_bytes": 1 << 40,
    }
    return DeviceProfile(**{**values, **changes})  # type: ignore[arg-type]


def homes(n_devices: int, server: Server | None = None) -> Fleet:
    """Equal devices behind 100/20 Mbit/s that compute for nothing and have plenty of memory."""
    return Fleet(
        tuple(
            device(
                i + 1,
                flops_per_s={DType.BF16: 1e16},
                downlink_bytes_per_s=12.5e6,
                uplink_bytes_per_s=2.5e6,
            )
            for i in range(n_devices)
        ),
        (),
        server or Server(),
    )
