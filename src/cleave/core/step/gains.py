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
from cleave.core.planning.cost import FleetArrays, Floats, line_s
from cleave.core.step.plan import Bottleneck, FamilyPlan, Gain, Loads, Part

_STEP = 1e-3  # relative change of a resource
_WORTH_TELLING = 0.01
_BINDS = 0.9  # of a part's time: what takes so long is what it waits for
_FIELDS = {
    "downlink": "downlink_bytes_per_s",
    "uplink": "uplink_bytes_per_s",
    "compute": "flops_per_s",
    "memory": "memory_bytes",
}


def line_seconds(loads: Loads, fleet: Fleet) -> tuple[Floats, Floats]:
    """Seconds that each device's downlink and uplink, or the line that it shares, are busy."""
    place = {site.site_id: i for i, site in enumerate(fleet.sites)}
    site = np.array([place.get(device.site_id, -1) for device in fleet.devices], dtype=np.int64)
    return (
        line_s(
            loads.down_bytes,
            np.array([device.downlink_bytes_per_s for device in fleet.devices]),
            site,
            np.array([each.downlink_bytes_per_s for each in fleet.sites]),
        ),
        line_s(
            loads.up_bytes,
            np.array([device.uplink_bytes_per_s for device in fleet.devices]),
            site,
            np.array([each.uplink_bytes_per_s for each in fleet.sites]),
        ),
    )


def bottleneck(plan: FamilyPlan, fleet: Fleet, dtype: DType) -> Bottleneck:
    """The resource that is busy for the largest share of the step, and how much all wait."""
    step_s, loads = plan.step_s, plan.loads
    used = loads.is_used
    kinds = np.array([device.kind for device in fleet.devices])
    down_s, up_s = line_seconds(loads, fleet)
    per_device = {
        "downlink": down_s,
        "uplink": up_s,
        "compute": loads.flops / [d.flops_per_s.get(dtype, np.inf) for d in fleet.devices],
    }
    busy_s = {
        (name, str(kind)): float(busy[chosen].mean())
        for kind in np.unique(kinds)
        if (chosen := used & (kinds == kind)).any()
        for name, busy in per_device.items()
    }
    server = fleet.server
    busy_s["server egress", ""] = plan.egress_bytes / server.egress_bytes_per_s
    busy_s["server ingress", ""] = plan.ingress_bytes / server.ingress_bytes_per_s
    busy_s["host", ""] = plan.host_s
    busiest = max(busy_s, key=lambda each: busy_s[each])
    wait_s = sum(part.times * (part.seconds - part.busy_s) for part in plan.parts)
    return Bottleneck(
        resource=busiest[0],
        kind=busiest[1],
        busy_share=busy_s[busiest] / step_s,
        wait_share=max(0.0, wait_s / step_s),
        host_share=plan.host_s / step_s,
    )


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
