"""The rules of host memory: it holds as much as was moved there, no more than there is, and gets it no faster than the link
brings it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.plan import FrontierPoint
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.rules import ModelSplit, devices_by_group
from meshwright.solver.verify.training.memory import layer_activations, residual_splits, whole_state
from meshwright.solver.verify.training.schedule import chunks, copies, held_at_most
from meshwright.solver.verify.training.stage_bytes import training_share
from meshwright.solver.verify.violation import Rule, Violation, agrees, at_most


def host_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Host memory of each stage, where its state may lie at all, and the time that weights take to come up twice."""
    share = training_share(plan, request)
    for index, stage in enumerate(plan.stages):
        yield from _place_violations(plan, stage, f"plan.stages[{index}].offload")
        yield from _drive_violations(plan, request, index, share)
        yield from _memory_violations(plan, request, index, share)
        yield from _link_violations(plan, request, index, share)


def _place_violations(plan: PipelinePlan, stage: Stage, where: str) -> Iterator[Violation]:
    """Weights that several ranks hold whole are gathered by all after an update; gradients are summed over ranks before they
    go, so that what goes is the rank's own."""
    alone, moved = plan.axes.dp * plan.axes.cp == 1, stage.offload
    if moved.weights and not alone and stage.zero_stage != 3:
        yield Violation(Rule.HOST_MEMORY, where, f"weights on the host beside ZeRO {stage.zero_stage}; 3 alone splits them")
    summed_later = stage.shard_ranks is not None or copies(plan) > 1 or (not alone and stage.zero_stage < 2)
    if moved.gradients and summed_later:
        yield Violation(Rule.HOST_MEMORY, where, "gradients on the host that are summed over ranks once a step")


def _memory_violations(plan: PipelinePlan, request: TrainingRequest, index: int, share: ModelSplit) -> Iterator[Violation]:
    """Yield a violation where the bytes on the host are not what was moved there, or where hosts lack room for all of their
    devices."""
    stage, where = plan.stages[index], f"plan.stages[{index}].memory.host_bytes"
    moved, claimed = stage.offload, stage.memory.host_bytes
    away = _away_bytes(plan, request, stage, share)
    expected = sum(bytes_ for rule, bytes_ in away.items() if rule not in _on_drives(stage))
    if moved.activations:
        here = replace(stage, offload=replace(moved, activations=0.0))
        options = []
        for split in residual_splits(plan, request):
            kept, _ = layer_activations(request, here, share, split)
            left, _ = layer_activations(request, stage, share, split)
            gone = [sum(kept[layer] - left[layer] for layer in chunk) for chunk in chunks(stage)]
            options.append(expected + held_at_most(plan, index, gone)[1])
        expected = min(options, key=lambda value: abs(value - claimed))
    if not (at_most(expected, claimed) if _on_drives(stage) else agrees(claimed, expected)):
        yield Violation(Rule.HOST_BYTES, where, f"{claimed} bytes claimed, what was moved there is {expected}")
    for group, _ in devices_by_group(request.cluster, stage.devices):
        room = group.node.host_memory_bytes / group.node.devices_per_node
        if not at_most(claimed, room):
            given = f"{claimed} bytes of each device, a device's share of its host is {room}"
            yield Violation(Rule.HOST_MEMORY, where, given, limit="host_memory")


def _away_bytes(plan: PipelinePlan, request: TrainingRequest, stage: Stage, share: ModelSplit) -> dict[Rule, float]:
    """Bytes of training state that lie not on the device, by kind."""
    whole, moved, memory = whole_state(plan, request, stage, share), stage.offload, stage.memory
    # Tied weights are stored once without a pipeline, and with one for each use.
    uses = 1 if len(plan.stages) > 1 else 0
    return {
        # What stays tells what went, where something stays.
        rule: left * gone / (1.0 - gone) if gone < 1.0 else whole[rule][uses]
        for rule, left, gone in (
            (Rule.WEIGHTS, memory.weights_bytes, moved.weights),
            (Rule.GRADIENTS, memory.gradients_bytes, moved.gradients),
            (Rule.OPTIMIZER, memory.optimizer_bytes, moved.optimizer),
        )
    }


def _on_drives(stage: Stage) -> set[Rule]:
    places = {Rule.OPTIMIZER: stage.offload.optimizer_to, Rule.WEIGHTS: stage.offload.weights_to}
    return {rule for rule, place in places.items() if place.value == "nvme"}


def _drive_violations(plan: PipelinePlan, request: TrainingRequest, index: int, share: ModelSplit) -> Iterator[Violation]:
    """Drives hold what was moved there, host memory two tiles of it (no smaller than a layer's mean), and a step takes as long
    as they need to read and write it: states in turn, weights for each pass."""
    stage, kinds = plan.stages[index], _on_drives(plan.stages[index])
    where, away = f"plan.stages[{index}].memory.nvme_bytes", _away_bytes(plan, request, stage, share)
    expected = sum(away[rule] for rule in kinds)
    if not agrees(stage.memory.nvme_bytes, expected):
        yield Violation(Rule.HOST_BYTES, where, f"{stage.memory.nvme_bytes} bytes claimed, what was moved there is {expected}")
    if not kinds:
        return
    layers = sum(span.count for span in stage.blocks)
    least = sum(bytes_ for rule, bytes_ in away.items() if rule not in kinds) + 2.0 * expected / layers
    if not at_most(least, stage.memory.host_bytes):
        given = f"{stage.memory.host_bytes} bytes claimed, with tiles on their way to the drives at least {least}"
        yield Violation(Rule.HOST_BYTES, f"plan.stages[{index}].memory.host_bytes", given)
    states = away[Rule.OPTIMIZER] if Rule.OPTIMIZER in kinds else 0.0
    weights = away[Rule.WEIGHTS] / copies(plan) if Rule.WEIGHTS in kinds else 0.0
    for group, _ in devices_by_group(request.cluster, stage.devices):
        drives, sharing = group.node.nvme, group.node.devices_per_node
        if drives is None or not at_most(expected, drives.capacity_bytes / sharing):
            room = 0 if drives is None else drives.capacity_bytes / sharing
            given = f"{expected} bytes of each device, its share of the drives is {room}"
            yield Violation(Rule.HOST_MEMORY, where, given, limit="nvme" if drives else "")
        if drives is None:
            continue
        step_s = sharing * (states / drives.read_bytes_per_s + states / drives.write_bytes_per_s)
        pass_s = sharing * 2.0 * weights / drives.read_bytes_per_s
        for name, claimed, least_s in (("extra_s", stage.extra_s, step_s), ("time_s", stage.time_s, pass_s)):
            if not at_most(least_s, claimed):
                given = f"{claimed} s; the drives take {least_s} s"
                yield Violation(Rule.STAGE_TIME, f"plan.stages[{index}].{name}", given)


def _link_violations(plan: PipelinePlan, request: TrainingRequest, index: int, share: ModelSplit) -> Iterator[Violation]:
    """A micro-batch waits for its weights to come up for both of its passes, and for its gradients to go down."""
    stage = plan.stages[index]
    if not (stage.offload.weights or stage.offload.gradients):
        return
    whole = whole_state(plan, request, stage, share)
    weights = stage.offload.weights * whole[Rule.WEIGHTS][0] / copies(plan)
    gradients = stage.offload.gradients * whole[Rule.GRADIENTS][0] / copies(plan)
    fastest = max(group.node.device.host_bytes_per_s for group, _ in devices_by_group(request.cluster, stage.devices))
    least_s = max(2.0 * weights, gradients) / fastest
    if not at_most(least_s, stage.time_s):
        given = f"{stage.time_s} s a micro-batch; its weights and gradients take {least_s} s over the link to the host"
        yield Violation(Rule.STAGE_TIME, f"plan.stages[{index}].time_s", given)


# The frontier of a training plan: the plan is on it, no point beats another, and cost follows from price and speed.

_S_PER_HOUR = 3600.0


def frontier_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Rules of a searched plan's frontier; one that was only predicted has none."""
    for index, point in enumerate(plan.frontier):
        where = f"plan.frontier[{index}]"
        better = [other for other in plan.frontier if other is not point and _beats(other, point)]
        if better and not _is_plan(point, plan):
            given = f"{better[0].summary!r} is at least as good in every respect, and better in one"
            yield Violation(Rule.FRONTIER, where, given)
        if point.devices > request.cluster.n_devices:
            given = f"{point.devices} devices, the cluster has {request.cluster.n_devices}"
            yield Violation(Rule.FRONTIER, where, given)
        yield from _cost_violations(point, request, where)
    if plan.frontier and not any(_is_plan(point, plan) for point in plan.frontier):
        yield Violation(Rule.FRONTIER, "plan.frontier", "the plan itself is not on it")


def _beats(a: FrontierPoint, b: FrontierPoint) -> bool:
    """Return True if no figure of ``a`` is worse, and one is better by more than rounding."""
    mine, theirs = _losses(a), _losses(b)
    return all(at_most(x, y) for x, y in zip(mine, theirs, strict=True)) and any(
        x < y and not agrees(x, y) for x, y in zip(mine, theirs, strict=True)
    )


def _losses(point: FrontierPoint) -> list[float]:
    known = (point.cost_per_million_tokens, point.energy_per_step_j)
    return [
        float(point.devices),
        1.0 / point.tokens_per_s,
        -(point.memory_headroom_bytes or 0.0),
        *(0.0 if figure is None else figure for figure in known),
    ]


def _is_plan(point: FrontierPoint, plan: PipelinePlan) -> bool:
    assert plan.predicted is not None
    same = (point.tokens_per_s, plan.predicted.tokens_per_s), (point.peak_memory_bytes, plan.predicted.peak_memory_bytes)
    return point.devices == plan.devices and all(agrees(a, b) for a, b in same)


def _cost_violations(point: FrontierPoint, request: TrainingRequest, where: str) -> Iterator[Violation]:
    """Of a cluster with one kind of node, any part costs its devices times their price."""
    if len(request.cluster.groups) > 1 or point.cost_per_million_tokens is None:
        return
    price = request.cluster.groups[0].node.device.price_per_hour
    expected = None if price is None else point.devices * price / _S_PER_HOUR / point.tokens_per_s * 1e6
    if expected is None or not agrees(point.cost_per_million_tokens, expected):
        given = f"{point.cost_per_million_tokens} USD a million tokens, price and speed make {expected}"
        yield Violation(Rule.FRONTIER, f"{where}.cost_per_million_tokens", given)
