"""Devices, fleets and works that the planner's tests share."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hypothesis import strategies as st

from cleave.core.device import DeviceProfile
from cleave.core.fleet import Fleet, Server, Site
from cleave.core.matrix import DType, Matrix
from cleave.core.operations import AttentionShape, AttentionTensors, Gemm, attention_forward
from cleave.core.planning.cost import FleetArrays
from cleave.core.work import Work

ROOMY_BYTES = 1 << 50
NO_LIMIT = Server()


def device(
    device_id: int,
    *,
    flops: float = 1e9,
    down: float = 1e6,
    up: float = 1e6,
    latency_s: float = 0.0,
    memory_bytes: int = ROOMY_BYTES,
    site_id: int = 0,
) -> DeviceProfile:
    """A device that computes in fp32 alone."""
    return DeviceProfile(
        device_id=device_id,
        flops_per_s={DType.F32: flops},
        downlink_bytes_per_s=down,
        uplink_bytes_per_s=up,
        latency_s=latency_s,
        memory_bytes=memory_bytes,
        site_id=site_id,
    )


def arrays(
    devices: Sequence[DeviceProfile], sites: Sequence[Site] = (), server: Server = NO_LIMIT
) -> FleetArrays:
    """The fleet for fp32."""
    return FleetArrays.of(Fleet(tuple(devices), tuple(sites), server), DType.F32)


def homes(n_devices: int, seed: int = 0, memory_bytes: int = ROOMY_BYTES) -> list[DeviceProfile]:
    """Log-normal spreads around 100/20 Mbit/s and 2 TFLOP/s."""
    draw = random.Random(seed)
    return [
        device(
            device_id,
            flops=2e12 * math.exp(draw.gauss(0, 0.8)),
            down=12.5e6 * math.exp(draw.gauss(0, 0.6)),
            up=2.5e6 * math.exp(draw.gauss(0, 0.6)),
            memory_bytes=memory_bytes,
        )
        for device_id in range(n_devices)
    ]


def gemm(m: int, n: int, k: int) -> Gemm:
    """A product of fp32 matrices."""
    return Gemm(
        name="forward",
        a=Matrix(1, m, k, DType.F32),
        b=Matrix(2, k, n, DType.F32),
        out=Matrix(3, m, n, DType.F32),
    )


def attention(batch: int, kv_heads: int) -> Work:
    """Two query heads per KV head, 8 positions of 4 features, with a padding mask."""
    shape = AttentionShape(
        batch=batch,
        kv_heads=kv_heads,
        group=2,
        q_len=8,
        kv_len=8,
        head_dim=4,
        value_dim=4,
        causal=True,
        scale=0.5,
    )
    width = kv_heads * 8 * 4
    tensors = AttentionTensors(
        q=Matrix(1, batch, 2 * width, DType.F32),
        k=Matrix(2, batch, width, DType.F32),
        v=Matrix(3, batch, width, DType.F32),
        out=Matrix(4, batch, 2 * width, DType.F32),
        lse=Matrix(5, batch, kv_heads * 16, DType.F32),
        mask=Matrix(6, batch, 8, DType.BOOL),
    )
    return attention_forward(shape, tensors)


SIDES = st.sampled_from([1, 2, 3, 7, 13, 64, 97, 200])


@st.composite
def works(draw: st.DrawFn) -> Work:
    """A GEMM over any two of its axes, or attention; small, odd and prime sides."""
    m, n, k = draw(SIDES), draw(SIDES), draw(SIDES)
    kind = draw(st.integers(0, 3))
    return attention(m, n) if kind == 3 else gemm(m, n, k).forms()[kind]


@st.composite
def fleets(draw: st.DrawFn, max_size: int = 24) -> list[DeviceProfile]:
    """Devices whose rates differ a hundredfold, some of them far away."""
    n_devices = draw(st.integers(1, max_size))
    rate = st.floats(0.1, 10.0)
    return [
        device(
            device_id,
            flops=1e9 * draw(rate),
            down=1e6 * draw(rate),
            up=1e6 * draw(rate),
            latency_s=draw(st.sampled_from([0.0, 0.001, 0.3])),
        )
        for device_id in range(n_devices)
    ]
