"""What binds a step, and what more of each resource would bring.

At the bound T* of a rectangle devices do areas v_i(T*) that add up to it. A rate and the time have
the same effect on v_i, so the relative change of T* per relative change of some devices' downlink
is ``-sum_i dv_i/dln(D_i) / sum_i dv_i/dln(T)``, the first sum over those devices, and likewise for
uplink, arithmetic and memory: implicit differentiation of ``sum_i v_i(T*) = M N``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cleave.core.fleet import Fleet
from cleave.core.matrix import DType
from cleave.core.planning.bound import area_within
from cleave.core.planning.cost import FleetArrays, Floats
from cleave.core.step.plan import Bottleneck, FamilyPlan, Gain, Part

_STEP = 1e-3  # relative change of a resource
_WORTH_TELLING = 0.01
_BINDS = 0.9  # of a part's time: what takes so long is what it waits for
_FIELDS = {
    "downlink": "downlink_bytes_per_s",
    "uplink": "uplink_bytes_per_s",
    "compute": "flops_per_s",
    "memory": "memory_bytes",
}


def bottleneck(plan: FamilyPlan, fleet: Fleet, dtype: DType) -> Bottleneck:
    """The resource that is busy for the largest share of the step."""
    step_s, loads = plan.step_s, plan.loads
    used = loads.is_used
    kinds = np.array([device.kind for device in fleet.devices])
    per_device = {
        "downlink": loads.down_bytes / [d.downlink_bytes_per_s for d in fleet.devices],
        "uplink": loads.up_bytes / [d.uplink_bytes_per_s for d in fleet.devices],
        "compute": loads.flops / [d.flops_per_s.get(dtype, np.inf) for d in fleet.devices],
    }
    found = [
        Bottleneck(resource=name, kind=str(kind), busy_share=float(busy[chosen].mean() / step_s))
        for kind in np.unique(kinds)
        if (chosen := used & (kinds == kind)).any()
        for name, busy in per_device.items()
    ]
    server = fleet.server
    for name, busy_s in (
        ("server egress", plan.egress_bytes / server.egress_bytes_per_s),
        ("server ingress", plan.ingress_bytes / server.ingress_bytes_per_s),
        ("host", plan.host_s),
    ):
        found.append(Bottleneck(resource=name, kind="", busy_share=busy_s / step_s))
    return max(found, key=lambda each: each.busy_share)


def gains(plan: FamilyPlan, fleet: Fleet, dtype: DType) -> tuple[Gain, ...]:
    """What more of each resource would bring, most helpful first."""
    shares: dict[tuple[str, str], float] = {}
    arrays = FleetArrays.of(fleet, dtype)
    able = [device for device in fleet.devices if dtype in device.flops_per_s]
    kinds = np.array([device.kind for device in able])
    for part in plan.parts:
        weight = part.times * part.seconds / plan.step_s
        for key, gain in _of_part(part, arrays, kinds).items():
            shares[key] = shares.get(key, 0.0) + weight * gain
    shares["host", ""] = plan.host_s / plan.step_s
    found = [
        Gain(resource=resource, kind=kind, step_s_gain=-share)
        for (resource, kind), share in shares.items()
        if share >= _WORTH_TELLING
    ]
    return tuple(sorted(found, key=lambda gain: gain.step_s_gain))


def _of_part(part: Part, arrays: FleetArrays, kinds: Floats) -> dict[tuple[str, str], float]:
    """Relative change of a part's time by resource and kind, as positive numbers."""
    egress_s, ingress_s = part.server_s
    if max(egress_s, ingress_s) > _BINDS * part.seconds:
        return {("server egress" if egress_s > ingress_s else "server ingress", ""): 1.0}
    if part.form is None or not part.bound_s:
        return {}
    n_rows, n_cols = part.sides
    base = area_within(part.form, arrays, n_rows, n_cols, part.bound_s)
    later = area_within(part.form, arrays, n_rows, n_cols, part.bound_s * (1 + _STEP))
    in_time = float((later - base).sum())
    if in_time <= 0:
        return {}
    found: dict[tuple[str, str], float] = {}
    for resource, field in _FIELDS.items():
        more = replace(arrays, **{field: getattr(arrays, field) * (1 + _STEP)})
        change = area_within(part.form, more, n_rows, n_cols, part.bound_s) - base
        for kind in np.unique(kinds):
            found[resource, str(kind)] = float(change[kinds == kind].sum()) / in_time
    return found
