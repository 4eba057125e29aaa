"""Layers, devices and degrees of equal serving workers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from meshwright.solver.answer.workers import Workers
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.verify.rules.devices import devices_by_group
from meshwright.solver.verify.rules.layers import layer_violations
from meshwright.solver.verify.serving.degrees import division_violations, stage_ranks
from meshwright.solver.verify.violation import Rule, Violation


def devices_of(workers: Workers) -> int:
    """Devices of all of them."""
    return workers.count * stage_ranks(workers.axes) * workers.axes.pp


def shape_violations(workers: Workers, request: ServingRequest, *, devices: int) -> Iterator[Violation]:
    """Layers, ``devices`` that the plan claims for them, and degrees of workers."""
    yield from layer_violations(workers.stages, request)
    yield from _device_violations(workers, devices, request)
    yield from division_violations(workers.axes, request)


def _device_violations(workers: Workers, devices: int, request: ServingRequest) -> Iterator[Violation]:
    """Replicas of pp stages of ranks. A stage lists its devices in every replica, or in the first."""
    axes, replicas = workers.axes, workers.count
    ranks = stage_ranks(axes)
    needed = replicas * ranks * axes.pp
    least = min(replicas, axes.tp, axes.kvp, axes.cp, axes.attention_dp, axes.ep, axes.pp)
    if least < 1 or axes.dp not in (1, replicas):
        yield Violation(Rule.AXES, "plan.axes", f"{axes}, replicas {replicas}: every degree is at least 1")
    if devices != needed:
        yield Violation(Rule.DEVICES, "plan.devices", f"{devices}, replicas x ranks of a stage x pp is {needed}")
    if devices > request.cluster.n_devices:
        yield Violation(Rule.DEVICES, "plan.devices", f"{devices}, the cluster has {request.cluster.n_devices}")
    if len(workers.stages) != axes.pp:
        yield Violation(Rule.STAGES, "plan.stages", f"{len(workers.stages)} stages, pp is {axes.pp}")
    ranges = sorted((listed.first, listed.count) for listed in workers.device_ranges)
    for (first, count), (following, _) in itertools.pairwise(ranges):
        if first + count > following:
            yield Violation(Rule.DEVICES, "plan.stages", f"device {following} is used twice")
    for index, stage in enumerate(workers.stages):
        where = f"plan.stages[{index}].devices"
        listed = sum(each.count for each in stage.devices)
        inside = sum(count for _, count in devices_by_group(request.cluster, stage.devices))
        if listed not in (ranks, ranks * replicas):
            given = f"{listed} devices; a stage has {ranks} in one replica, {ranks * replicas} in all"
            yield Violation(Rule.DEVICES, where, given)
        if inside != listed:
            yield Violation(Rule.DEVICES, where, f"the cluster has ranks 0 to {request.cluster.n_devices - 1}")
        if replace(stage.axes, dp=axes.dp) != axes:
            yield Violation(Rule.AXES, f"plan.stages[{index}].axes", f"{stage.axes}, the plan has {axes}")
