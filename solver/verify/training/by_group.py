"""Plans whose node groups have replicas of their own: each group's layout is a plan by itself, the shares make up the batch,
and the whole takes as long as the slowest group and the exchange of gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import DeviceRange, Stage
from meshwright.solver.problem.choices import BatchShares, Gradients, Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.counted import Counted
from meshwright.solver.verify.numbers import agrees, at_most
from meshwright.solver.verify.training.host import host_violations
from meshwright.solver.verify.training.layout import layout_violations
from meshwright.solver.verify.training.memory import memory_violations, peak_violations
from meshwright.solver.verify.training.restrictions import restriction_violations
from meshwright.solver.verify.training.sharding import sharding_violations
from meshwright.solver.verify.training.tensor_overlap import overlap_violations
from meshwright.solver.verify.training.times import pipeline_violations, stage_time_violations, whole_violations
from meshwright.solver.verify.violation import Rule, Violation


def share_violations(plan: Plan, request: TrainingRequest, counted: Counted) -> tuple[Violation, ...]:
    """Rules of a plan with shares: of the shares, then of each group's layout, then of the whole."""
    broken = counted.of(_dealing_violations(plan, request))
    if not broken:
        parts = _parts(plan, request)
        for rules in _OF_A_GROUP:
            broken = broken or counted.of(violation for part, asked in parts for violation in rules(part, asked))
        times = (stage_time_violations, pipeline_violations)
        broken = broken or counted.of(v for part, asked in parts for rules in times for v in rules(part, asked))
    return broken or counted.of(_whole_violations(plan, request))


_OF_A_GROUP = (
    layout_violations,
    sharding_violations,
    restriction_violations,
    overlap_violations,
    memory_violations,
    host_violations,
)


def _dealing_violations(plan: Plan, request: TrainingRequest) -> Iterator[Violation]:
    """Shares only where they are asked for, one for each node group in order, all positive, together the batch."""
    assert plan.shares is not None
    shares, search = plan.shares, request.search
    if search.batch_shares is not BatchShares.BY_GROUP or search.space is not Space.FREE:
        yield Violation(Rule.SEARCH, "plan.shares", "replicas by node group, which the request does not ask for")
    behind = [group.name for group in request.cluster.groups[1:]]
    named = [pool.group for pool in shares.pools]
    if named != behind:
        yield Violation(Rule.DEVICES, "plan.shares.pools", f"replicas on {named} beside the first group's, it has {behind}")
    taken = [shares.sequences, *(pool.sequences for pool in shares.pools)]
    if min(taken) < 1 or sum(taken) != request.workload.global_batch:
        given = f"{taken} sequences, together they should be {request.workload.global_batch}"
        yield Violation(Rule.BATCH, "plan.shares", given)
    layouts = (plan.stages, *(pool.stages for pool in shares.pools))
    if any(stage.gradients is Gradients.RELEASED for stages in layouts for stage in stages):
        yield Violation(Rule.SEARCH, "plan.shares", "gradients are released before they are summed between groups")
    if any(stage.shardings for stages in layouts for stage in stages):
        yield Violation(Rule.STAGES, "plan.shares", "beside stages with shardings of their own")
    if plan.group_order or plan.idle_devices:
        yield Violation(Rule.DEVICES, "plan.shares", "beside another order of groups or idle devices")


def _parts(plan: Plan, request: TrainingRequest) -> list[tuple[Plan, TrainingRequest]]:
    """Each group's replicas as a plan of its own nodes, ranks from 0, with the request that it answers."""
    assert plan.shares is not None and plan.predicted is not None
    shares, nodes = plan.shares, 0
    parts = [(_alone(plan, plan.stages, 0, shares.step_time_s), _asked(request, 0, shares.sequences, nodes))]
    first = 0
    for index, pool in enumerate(shares.pools, start=1):
        first += request.cluster.groups[index - 1].n_devices
        nodes += request.cluster.groups[index - 1].nodes
        own = _alone(plan.laid_out_as(pool), pool.stages, first, pool.step_time_s)
        parts.append((own, _asked(request, index, pool.sequences, nodes)))
    return parts


def _alone(plan: Plan, stages: tuple[Stage, ...], first: int, step_s: float) -> Plan:
    assert plan.predicted is not None
    own = tuple(
        replace(stage, devices=tuple(DeviceRange(each.first - first, each.count) for each in stage.devices)) for stage in stages
    )
    fullest = max((stage.memory.total_bytes for stage in stages), default=0.0)
    predicted = replace(plan.predicted, step_time_s=step_s, peak_memory_bytes=fullest)
    devices = sum(each.count for stage in stages for each in stage.devices)
    return replace(plan, stages=own, predicted=predicted, devices=devices, shares=None)


def _asked(request: TrainingRequest, index: int, sequences: int, nodes: int) -> TrainingRequest:
    """Of leaf switches a group that begins inside one has none to itself."""
    per_leaf = request.cluster.nodes_per_leaf
    begins = per_leaf is not None and nodes % per_leaf == 0
    cluster = replace(
        request.cluster, groups=request.cluster.groups[index : index + 1], nodes_per_leaf=per_leaf if begins else None
    )
    return replace(request, cluster=cluster, workload=replace(request.workload, global_batch=sequences))


def _whole_violations(plan: Plan, request: TrainingRequest) -> Iterator[Violation]:
    """Step time, and what follows from it for all devices together."""
    assert plan.shares is not None and plan.predicted is not None and plan.predicted.step_time_s is not None
    shares = plan.shares
    least_s = _least_exchange_s(plan, request)
    if not at_most(least_s, shares.exchange_s):
        given = f"{shares.exchange_s} s; gradients alone take {least_s} s over the slowest network"
        yield Violation(Rule.STEP_TIME, "plan.shares.exchange_s", given)
    expected = max(shares.step_time_s, *(pool.step_time_s for pool in shares.pools)) + shares.exchange_s
    if not agrees(plan.predicted.step_time_s, expected):
        given = f"{plan.predicted.step_time_s} s, the groups and the exchange of gradients make {expected} s"
        yield Violation(Rule.STEP_TIME, "plan.predicted.step_time_s", given)
    stages = (*plan.stages, *(stage for pool in shares.pools for stage in pool.stages))
    whole = replace(plan, stages=stages)
    used = sum(each.count for stage in stages for each in stage.devices)
    if plan.devices != used:
        yield Violation(Rule.DEVICES, "plan.devices", f"{plan.devices}, the stages hold {used} devices")
    yield from peak_violations(whole.predicted, whole.stages)
    yield from whole_violations(whole, request)


def _least_exchange_s(plan: Plan, request: TrainingRequest) -> float:
    """Of an all-reduce between n groups each device sends 2 (n - 1)/n of its part of its stage's gradients (survey, Table 2),
    at its share of its node's cards."""
    assert plan.shares is not None
    groups, layouts = request.cluster.groups, [plan.stages, *(pool.stages for pool in plan.shares.pools)]
    sent = 2.0 * (len(groups) - 1) / len(groups) * request.workload.gradient_dtype.size_bytes
    longest_s = 0.0
    for group, stages in zip(groups, layouts, strict=True):
        rate = group.node.inter.bytes_per_s / group.node.devices_per_node / request.cluster.oversubscription
        for stage in stages:
            held = sum(span.count * _parameters(request, span.block) for span in stage.blocks)
            longest_s = max(longest_s, sent * held / sum(each.count for each in stage.devices) / rate)
    return longest_s


def _parameters(request: TrainingRequest, block: str) -> int:
    """Parameters of a block that are stored with it."""
    weights = (weight for operator in request.model.block(block).operators for weight in operator.weights)
    return sum(weight.elements(request.model.dims) for weight in weights if weight.tied_to is None)
