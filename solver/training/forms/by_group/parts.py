"""Plans whose node groups have replicas of their own: taken apart into a plan for each group, and put together again.

Replicas on unequal devices need not be alike: each group's run their own pipelines over their share of the batch, and
gradients are exchanged layer by layer between whatever devices hold a layer (Oobleck, Jang et al., SOSP'23, section 4.1.2, for
pipelines of different lengths; shares of the batch as in Metis, Um et al., ATC'24, section 3.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, NodeGroup
from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.solver.answer.layouts import ByGroup, GroupReplicas, Pipelines
from meshwright.solver.answer.pipeline_plan import pipelines_of, placement_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.answer.stage import DeviceRange, Stage
from meshwright.solver.problem.choices import BatchShares, FrontierScope, GroupOrder, Objective
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import Slo, TrainingRequest
from meshwright.solver.training.report.bands import calibrations_used, step_time_bands
from meshwright.solver.training.report.between_nodes import unmeasured_wait_s, widest_spread
from meshwright.solver.training.report.frontier import cost_per_million_tokens
from meshwright.solver.training.report.whole_steps import has_untold_rates, step_traits


@dataclass(frozen=True)
class GroupPart:
    """The pipelines of one node group's replicas, ranks from 0, and the request that they answer."""

    pipelines: Pipelines
    request: TrainingRequest


def check_groups(request: TrainingRequest, layout: ByGroup) -> None:
    """Raise PlanFileError unless the plan has replicas for each node group, whose shares make up the batch."""
    own = [group.name for group in request.cluster.groups]
    named = [replicas.group for replicas in layout.groups[1:]]
    if named != own[1:]:
        raise PlanFileError(
            "the plan's pools are not the cluster's node groups behind the first, in order",
            given=", ".join(named),
            allowed=", ".join(own[1:]),
        )
    taken = [replicas.sequences for replicas in layout.groups]
    if min(taken) < 1 or sum(taken) != request.workload.global_batch:
        raise PlanFileError(
            "the pools' shares do not make up the global batch", given=taken, allowed=str(request.workload.global_batch)
        )


def pool_request(request: TrainingRequest, index: int, sequences: int) -> TrainingRequest:
    """Return the request for the replicas of one node group: their share of the batch on their own nodes."""
    before = sum(group.nodes for group in request.cluster.groups[:index])
    leaf = request.cluster.nodes_per_leaf
    return replace(
        request,
        cluster=replace(
            request.cluster,
            groups=(request.cluster.groups[index],),
            # Leaves are counted from the first node; a group that begins inside one is taken to have none.
            nodes_per_leaf=leaf if leaf is not None and before % leaf == 0 else None,
        ),
        workload=replace(request.workload, global_batch=sequences),
        slo=Slo(),
        objective=Objective.STEP_TIME,
        search=replace(
            request.search,
            batch_shares=BatchShares.EVEN,
            group_order=GroupOrder.GIVEN,
            idle_groups=(),
            frontier=FrontierScope.VISITED,
        ),
    )


def exchange_s(request: TrainingRequest, pools: Sequence[Sequence[Stage]]) -> float:
    """Time of summing gradients between pools, each of which is given by its stages.

    Every device of a stage has summed its part of the stage's gradients inside its pool, and all-reduces it with its
    counterparts; the pool with the longest such message decides, each device having its share of its node's network.
    """
    groups = request.cluster.groups
    return max(
        group_exchange_s(request, group, max(_stage_parameters(request.model, stage) / _devices(stage) for stage in stages))
        for group, stages in zip(groups, pools, strict=True)
    )


def least_exchange_s(request: TrainingRequest) -> float:
    """The same if every pool's devices had equal parts of all gradients: no layout has less."""
    parameters = request.model.parameters()
    return max(group_exchange_s(request, group, parameters / group.n_devices) for group in request.cluster.groups)


def group_exchange_s(request: TrainingRequest, group: NodeGroup, parameters: float) -> float:
    """Seconds of an all-reduce of so many parameters' gradients on each device of a group with one of each other group."""
    cluster, node = request.cluster, group.node
    link = GroupTopology(
        n=len(cluster.groups),
        ranks_per_node=1,
        intra=node.intra,
        inter_bytes_per_s=node.inter.bytes_per_s / node.devices_per_node / cluster.oversubscription,
        inter_latency_s=node.inter.latency_s,
        calibration=node.device.calibration,
        network=node.network,
    )
    return float(collective_s(Collective.ALL_REDUCE, parameters * request.workload.gradient_dtype.size_bytes, link))


def _stage_parameters(model: ModelGraph, stage: Stage) -> int:
    """Parameters of a stage's layers, whole; those of tied weights where their owner is."""
    return sum(span.count * model.block_parameters(span.block) for span in stage.blocks)


def _devices(stage: Stage) -> int:
    return sum(devices.count for devices in stage.devices)


def joined_plan(request: TrainingRequest, plans: Sequence[Plan]) -> Plan:
    """One plan of the pools' plans, first group first, with figures of the whole; all else is the first's."""
    workload = request.workload
    steps = [_step_s(plan) for plan in plans]
    gradients_s = exchange_s(request, [pipelines_of(plan).stages for plan in plans])
    step_s = max(steps) + gradients_s
    tokens_per_s = workload.global_batch * workload.seq_len / step_s
    devices = [(group.node.device, plan.devices) for group, plan in zip(request.cluster.groups, plans, strict=True)]
    peak = sum(number * device.peak(workload.precision) for device, number in devices)
    mfu = sum(
        _mfu(plan) * own_s * number * device.peak(workload.precision)
        for plan, own_s, (device, number) in zip(plans, steps, devices, strict=True)
    ) / (step_s * peak)
    first, placement = plans[0], placement_of(plans[0])
    breakdown = placement.breakdown
    assert breakdown is not None
    predicted = [plan.predicted for plan in plans if plan.predicted is not None]
    pipelines = pipelines_of(first)
    wait_s = unmeasured_wait_s(request.cluster, pipelines.axes, breakdown, choices=pipelines)
    return replace(
        first,
        devices=sum(plan.devices for plan in plans),
        calibration=calibrations_used(request),
        predicted=Predicted(
            tokens_per_s=tokens_per_s,
            peak_memory_bytes=max(each.peak_memory_bytes for each in predicted),
            peak_memory_p95_bytes=max(each.peak_memory_p95_bytes or 0.0 for each in predicted),
            chance_out_of_memory=max(each.chance_out_of_memory or 0.0 for each in predicted),
            step_time_s=step_s,
            mfu=mfu,
            cost_per_million_tokens=cost_per_million_tokens(devices, tokens_per_s),
            energy_per_step_j=_energy_j(request.cluster, plans, step_s),
            bands=step_time_bands(
                request,
                step_traits(
                    request.model,
                    breakdown,
                    [stage.time_s for stage in pipelines.stages],
                    unmeasured_wait_s=wait_s + widest_spread(request.cluster) * gradients_s,
                    untold_rates=has_untold_rates(request.cluster),
                ),
                step_time_s=step_s,
                tokens_per_s=tokens_per_s,
                mfu=mfu,
            ),
        ),
        layout=ByGroup(
            groups=tuple(
                _replicas(plan, request.cluster.groups, place) if place else _first_replicas(plan)
                for place, plan in enumerate(plans)
            ),
            exchange_s=gradients_s,
            placement=replace(
                placement,
                breakdown=replace(
                    breakdown,
                    bubble_s=breakdown.bubble_s + max(steps) - steps[0],
                    dp_comm_s=breakdown.dp_comm_s + gradients_s,
                ),
            ),
        ),
        runners_up=(),
        frontier=(),
    )


def _energy_j(cluster: Cluster, plans: Sequence[Plan], step_s: float) -> float:
    """Energy of the pools' own steps, and idle power while they wait for the slowest and for gradients."""
    total = 0.0
    for plan, group in zip(plans, cluster.groups, strict=True):
        assert plan.predicted is not None and plan.predicted.energy_per_step_j is not None
        total += plan.predicted.energy_per_step_j
        total += plan.devices * group.node.device.idle_power_w * (step_s - _step_s(plan))
    return total


def _first_replicas(plan: Plan) -> GroupReplicas:
    # Documents do not name the first group: it is the cluster's.
    return GroupReplicas("", _sequences(plan), _step_s(plan), pipelines_of(plan))


def _replicas(plan: Plan, groups: Sequence[NodeGroup], place: int) -> GroupReplicas:
    """The replicas of a group that lies behind others, on its devices of the whole cluster."""
    pipelines, first = pipelines_of(plan), sum(each.n_devices for each in groups[:place])
    # Documents have no token slices of these replicas.
    moved = replace(pipelines, stages=tuple(_moved(stage, first) for stage in pipelines.stages), token_slices=())
    return GroupReplicas(groups[place].name, _sequences(plan), _step_s(plan), moved)


def parts_of(request: TrainingRequest, layout: ByGroup) -> tuple[GroupPart, ...]:
    """Each group's replicas by themselves, in order."""
    parts, first = [], 0
    for index, (replicas, group) in enumerate(zip(layout.groups, request.cluster.groups, strict=True)):
        stages = tuple(_moved(stage, -first) for stage in replicas.pipelines.stages)
        pipelines = replace(replicas.pipelines, stages=stages)
        parts.append(GroupPart(pipelines, pool_request(request, index, replicas.sequences)))
        first += group.n_devices
    return tuple(parts)


def _moved(stage: Stage, by: int) -> Stage:
    return replace(stage, devices=tuple(DeviceRange(devices.first + by, devices.count) for devices in stage.devices))


def _sequences(plan: Plan) -> int:
    pipelines = pipelines_of(plan)
    return pipelines.axes.dp * pipelines.microbatch.size * pipelines.microbatch.count


def _step_s(plan: Plan) -> float:
    assert plan.predicted is not None and plan.predicted.step_time_s is not None
    return plan.predicted.step_time_s


def _mfu(plan: Plan) -> float:
    assert plan.predicted is not None and plan.predicted.mfu is not None
    return plan.predicted.mfu
