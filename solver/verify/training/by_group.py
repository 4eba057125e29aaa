"""Plans whose node groups have replicas of their own: each group's layout is a plan by itself, the shares make up the batch,
and the whole takes as long as the slowest group and the exchange of gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.solver.answer.layouts import ByGroup, GroupReplicas, Placement
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import DeviceRange, Stage
from meshwright.solver.problem.choices import BatchShares, Gradients, Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.rules import peak_violations
from meshwright.solver.verify.training.host import host_violations
from meshwright.solver.verify.training.layout import layout_violations
from meshwright.solver.verify.training.memory import memory_violations, risk_violations
from meshwright.solver.verify.training.restrictions import restriction_violations
from meshwright.solver.verify.training.sharding import overlap_violations, sharding_violations
from meshwright.solver.verify.training.times import pipeline_violations, stage_time_violations, whole_violations
from meshwright.solver.verify.violation import Counted, Rule, Violation, agrees, at_most


def share_violations(plan: Plan, layout: ByGroup, request: TrainingRequest, counted: Counted) -> tuple[Violation, ...]:
    """Rules of a plan with shares: of the shares, then of each group's layout, then of the whole."""
    broken = counted.of(_dealing_violations(layout, request))
    if not broken:
        parts = _parts(plan, layout, request)
        for rules in _OF_A_GROUP:
            broken = broken or counted.of(violation for part, asked in parts for violation in rules(part, asked))
        times = (stage_time_violations, pipeline_violations)
        broken = broken or counted.of(v for part, asked in parts for rules in times for v in rules(part, asked))
    return broken or counted.of(_whole_violations(plan, layout, request))


_OF_A_GROUP = (
    layout_violations,
    sharding_violations,
    restriction_violations,
    overlap_violations,
    memory_violations,
    host_violations,
)


def _dealing_violations(layout: ByGroup, request: TrainingRequest) -> Iterator[Violation]:
    """Shares only where they are asked for, one for each node group in order, all positive, together the batch."""
    search = request.search
    if search.batch_shares is not BatchShares.BY_GROUP or search.space is not Space.FREE:
        yield Violation(Rule.SEARCH, "plan.shares", "replicas by node group, which the request does not ask for")
    behind = [group.name for group in request.cluster.groups[1:]]
    named = [replicas.group for replicas in layout.groups[1:]]
    if named != behind:
        yield Violation(Rule.DEVICES, "plan.shares.pools", f"replicas on {named} beside the first group's, it has {behind}")
    taken = [replicas.sequences for replicas in layout.groups]
    if min(taken) < 1 or sum(taken) != request.workload.global_batch:
        given = f"{taken} sequences, together they should be {request.workload.global_batch}"
        yield Violation(Rule.BATCH, "plan.shares", given)
    stages = _stages(layout)
    if any(stage.gradients is Gradients.RELEASED for stage in stages):
        yield Violation(Rule.SEARCH, "plan.shares", "gradients are released before they are summed between groups")
    if any(stage.shardings for stage in stages):
        yield Violation(Rule.STAGES, "plan.shares", "beside stages with shardings of their own")
    if layout.placement.group_order or layout.placement.idle_devices:
        yield Violation(Rule.DEVICES, "plan.shares", "beside another order of groups or idle devices")


def _stages(layout: ByGroup) -> tuple[Stage, ...]:
    return tuple(stage for replicas in layout.groups for stage in replicas.pipelines.stages)


def _parts(plan: Plan, layout: ByGroup, request: TrainingRequest) -> list[tuple[PipelinePlan, TrainingRequest]]:
    """Each group's replicas as a plan of its own nodes, ranks from 0, with the request that it answers."""
    parts, first, nodes = [], 0, 0
    for index, (replicas, group) in enumerate(zip(layout.groups, request.cluster.groups, strict=True)):
        own = _alone(plan, layout.placement, replicas, first)
        parts.append((own, _asked(request, index, replicas.sequences, nodes)))
        first += group.n_devices
        nodes += group.nodes
    return parts


def _alone(plan: Plan, placement: Placement, replicas: GroupReplicas, first: int) -> PipelinePlan:
    assert plan.predicted is not None
    stages = replicas.pipelines.stages
    own = tuple(
        replace(stage, devices=tuple(DeviceRange(each.first - first, each.count) for each in stage.devices)) for stage in stages
    )
    fullest = max((stage.memory.total_bytes for stage in stages), default=0.0)
    predicted = replace(plan.predicted, step_time_s=replicas.step_time_s, peak_memory_bytes=fullest)
    devices = sum(each.count for stage in stages for each in stage.devices)
    return PipelinePlan(replace(replicas.pipelines, stages=own), placement, devices, predicted, plan.frontier)


def _asked(request: TrainingRequest, index: int, sequences: int, nodes: int) -> TrainingRequest:
    """Of leaf switches a group that begins inside one has none to itself."""
    per_leaf = request.cluster.nodes_per_leaf
    begins = per_leaf is not None and nodes % per_leaf == 0
    cluster = replace(
        request.cluster, groups=request.cluster.groups[index : index + 1], nodes_per_leaf=per_leaf if begins else None
    )
    return replace(request, cluster=cluster, workload=replace(request.workload, global_batch=sequences))


def _whole_violations(plan: Plan, layout: ByGroup, request: TrainingRequest) -> Iterator[Violation]:
    """Step time, and what follows from it for all devices together."""
    assert plan.predicted is not None and plan.predicted.step_time_s is not None
    least_s = _least_exchange_s(layout, request)
    if not at_most(least_s, layout.exchange_s):
        given = f"{layout.exchange_s} s; gradients alone take {least_s} s over the slowest network"
        yield Violation(Rule.STEP_TIME, "plan.shares.exchange_s", given)
    expected = max(replicas.step_time_s for replicas in layout.groups) + layout.exchange_s
    if not agrees(plan.predicted.step_time_s, expected):
        given = f"{plan.predicted.step_time_s} s, the groups and the exchange of gradients make {expected} s"
        yield Violation(Rule.STEP_TIME, "plan.predicted.step_time_s", given)
    stages = _stages(layout)
    whole = PipelinePlan(
        replace(layout.groups[0].pipelines, stages=stages), layout.placement, plan.devices, plan.predicted, plan.frontier
    )
    used = sum(each.count for stage in stages for each in stage.devices)
    if plan.devices != used:
        yield Violation(Rule.DEVICES, "plan.devices", f"{plan.devices}, the stages hold {used} devices")
    yield from peak_violations(whole.predicted, stages)
    yield from risk_violations(whole, request)
    yield from whole_violations(whole, request)


def _least_exchange_s(layout: ByGroup, request: TrainingRequest) -> float:
    """Of an all-reduce between n groups each device sends 2 (n - 1)/n of its part of its stage's gradients (survey, Table 2),
    at its share of its node's cards."""
    groups = request.cluster.groups
    sent = 2.0 * (len(groups) - 1) / len(groups) * request.workload.gradient_dtype.size_bytes
    longest_s = 0.0
    for group, replicas in zip(groups, layout.groups, strict=True):
        rate = group.node.inter.bytes_per_s / group.node.devices_per_node / request.cluster.oversubscription
        for stage in replicas.pipelines.stages:
            held = sum(span.count * _parameters(request, span.block) for span in stage.blocks)
            longest_s = max(longest_s, sent * held / sum(each.count for each in stage.devices) / rate)
    return longest_s


def _parameters(request: TrainingRequest, block: str) -> int:
    """Parameters of a block that are stored with it."""
    weights = (weight for operator in request.model.block(block).operators for weight in operator.weights)
    return sum(weight.elements(request.model.dims) for weight in weights if weight.tied_to is None)
