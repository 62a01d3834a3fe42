"""A plan made by hand, small enough to check its figures in one's head."""

from __future__ import annotations

import numpy as np

from cleave.cli.plan_facts import Question
from cleave.core.device import Caps, DeviceProfile
from cleave.core.fleet import Fleet, Server, Site
from cleave.core.matrix import DType
from cleave.core.step.batch import Batch
from cleave.core.step.model import ModelShape
from cleave.core.step.plan import (
    Alternative,
    Bottleneck,
    FamilyPlan,
    Gain,
    HostNeeds,
    Loads,
    StepPlan,
)

MODEL = ModelShape(
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


def device(device_id: int, kind: str, **changes: object) -> DeviceProfile:
    values: dict[str, object] = {
        "device_id": device_id,
        "kind": kind,
        "flops_per_s": {DType.BF16: 1e9},
        "downlink_bytes_per_s": 1e6,
        "uplink_bytes_per_s": 5e5,
        "latency_s": 0.02,
        "memory_bytes": 4_000_000,
        "caps": Caps(hours_per_day=6),
    }
    return DeviceProfile(**{**values, **changes})  # type: ignore[arg-type]


FLEET = Fleet(
    (
        device(1, "laptop"),
        device(2, "laptop", site_id=1),
        device(3, "laptop", site_id=1),
        device(4, "phone", caps=Caps(hours_per_day=2, bytes_per_month=1e9)),
        device(5, "phone", caps=Caps(hours_per_day=2)),
    ),
    (Site(site_id=1, downlink_bytes_per_s=1e6, uplink_bytes_per_s=2.5e5),),
    Server(
        nic_bytes_per_s=1e6,
        process_bytes_per_s=8e5,
        memory_bytes=1e9,
        memory_bytes_per_s=1e9,
        flops_per_s=1e9,
    ),
)
QUESTION = Question(
    model=MODEL,
    fleet=FLEET,
    fleet_name="by hand",
    batch=Batch(tokens=64, length=16),
    total_tokens=12_800,
)


def step_plan(**changes: object) -> StepPlan:
    """Ten seconds, 2 of them on the host; one phone is left out; a laptop does 30 % of the work."""
    loads = Loads(
        down_bytes=np.array([4e6, 2e6, 2e6, 1e6, 0]),
        up_bytes=np.array([1e6, 5e5, 5e5, 2.5e5, 0]),
        flops=np.array([3e9, 3e9, 3e9, 1e9, 0]),
        memory_bytes=np.array([1e6, 2e6, 3e6, 1e6, 0]),
    )
    best = FamilyPlan(
        family="block",
        summary="qkv, out: inner axis whole",
        step_s=10.0,
        bound_s=8.0,
        host_s=2.0,
        parts=(),
        loads=loads,
        left_out=((5, "would not shorten the 8 s that the others take"),),
    )
    values: dict[str, object] = {
        "best": best,
        "alternatives": (
            Alternative(family="ksplit", step_s=12.5, reason="1.25 times as long"),
            Alternative(family="grid", step_s=None, reason="no device can hold a layer"),
        ),
        "bottleneck": Bottleneck(
            resource="uplink", kind="laptop", busy_share=0.6, wait_share=0.1, host_share=0.2
        ),
        "gains": (Gain(resource="uplink", kind="laptop", step_s_gain=-0.6),),
        "host": HostNeeds(
            weights_bytes=1e3,
            gradients_bytes=1e3,
            optimizer_bytes=2e3,
            activation_bytes=4e3,
            is_recomputing=False,
            memory_traffic_bytes=1e6,
            seconds=2.0,
        ),
        "host_alone_s": 40.0,
    }
    return StepPlan(**{**values, **changes})  # type: ignore[arg-type]
