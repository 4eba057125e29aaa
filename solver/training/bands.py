"""Error bands of a training prediction, from the held-out errors of the calibrations it rests on."""

from __future__ import annotations

from collections.abc import Mapping

from costmodels.cluster import Device
from solver.plan import Band, CalibrationUse
from solver.request import PlanRequest


def _devices(request: PlanRequest) -> list[Device]:
    by_name = {group.node.device.name: group.node.device for group in request.cluster.groups}
    return [by_name[name] for name in sorted(by_name)]


def calibrations_used(request: PlanRequest) -> tuple[CalibrationUse, ...]:
    return ()


def step_time_bands(request: PlanRequest, step_time_s: float, tokens_per_s: float) -> Mapping[str, Band]:
    return {}
