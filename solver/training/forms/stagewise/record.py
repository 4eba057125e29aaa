"""The plan of stages that differ, from what each of them is; and given plans of such stages, predicted anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.costmodels.cluster.cluster import Device, NodeGroup
from meshwright.costmodels.cluster.rank_runs import BusyTime, device_energy_j
from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer.arrangement import arranged, arrangement_of, in_arrangement
from meshwright.solver.answer.layouts import Pipelines, Stagewise
from meshwright.solver.answer.pipeline_plan import pipelines_of, placement_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import GIVEN_PLAN, Certificate, Reason, SearchStats, Status
from meshwright.solver.answer.stage import DeviceRange, Microbatch, Stage
from meshwright.solver.problem.carried_choices import OF_MESHES
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import (
    Decision,
    DecisionCost,
    Sharding,
    StageSpan,
    StageTable,
    evaluate_decision,
    rank_breakdown,
)
from meshwright.solver.training.forms.stagewise.stage_sizes import Borders, laid_out, sized_request, stage_links, stage_table
from meshwright.solver.training.forms.uniform.prediction import crowded_reason, decision_of, judged
from meshwright.solver.training.report.plan_report import decided_plan, operator_shardings, slo_reason
from meshwright.solver.training.space.candidates import Candidate


@dataclass(frozen=True, eq=False)
class StageWay:
    """The way in which one stage runs: its candidate (degrees, micro-batch, place of state) and sharding, with the costs that
    these have on ``devices`` of a node group between its borders."""

    costs: TrainingCosts
    candidate: Candidate
    sharding: Sharding
    group: NodeGroup
    devices: int
    borders: Borders


def stagewise_plan(
    request: TrainingRequest,
    ways: Sequence[StageWay],
    spans: tuple[StageSpan, ...],
    *,
    certificate: Certificate,
    stats: SearchStats,
) -> Plan:
    """The plan of stages that are each of their own way; axes and micro-batch of the whole are those of the first stage."""
    candidates = _candidates(ways, spans)
    decision, cost, tables = _evaluated(ways, candidates, spans)
    # The record of the whole is made on a cluster that has as many devices in each stage as the first has.
    costs = TrainingCosts(sized_request(request, ways[0].group, ways[0].devices, pp=len(ways)))
    plan = decided_plan(
        request,
        costs,
        decision,
        cost,
        certificate=certificate,
        stats=stats,
        tables=tables,
        devices=_devices_in_use(request, ways),
    )
    alike = pipelines_of(plan)
    ranges = laid_out(request.cluster, [(way.group, way.devices) for way in ways])
    stages = tuple(
        _stage(stage, way, candidate, place)
        for stage, way, candidate, place in zip(alike.stages, ways, candidates, ranges, strict=True)
    )
    assert plan.predicted is not None
    energy_j = _energy_j(ways, decision, cost, tables)
    return replace(
        plan,
        layout=Stagewise(replace(alike, stages=stages), placement_of(plan)),
        predicted=replace(plan.predicted, energy_per_step_j=energy_j),
    )


def _devices_in_use(request: TrainingRequest, ways: Sequence[StageWay]) -> list[tuple[Device, int]]:
    groups = ((group, sum(way.devices for way in ways if way.group == group)) for group in request.cluster.groups)
    return [(group.node.device, number) for group, number in groups if number]


def stagewise_cost(ways: Sequence[StageWay], spans: tuple[StageSpan, ...]) -> DecisionCost:
    """Time and memory of stages that are each of their own way."""
    return _evaluated(ways, _candidates(ways, spans), spans)[1]


def _candidates(ways: Sequence[StageWay], spans: Sequence[StageSpan]) -> list[Candidate]:
    """Each stage's candidate in the pipeline of all of them."""
    modes = tuple(dict.fromkeys(span.recompute for span in spans))
    return [replace(way.candidate, mesh=replace(way.candidate.mesh, pp=len(ways)), recompute=modes) for way in ways]


def _evaluated(
    ways: Sequence[StageWay], candidates: Sequence[Candidate], spans: tuple[StageSpan, ...]
) -> tuple[Decision, DecisionCost, tuple[StageTable, ...]]:
    tables = tuple(_table(way, candidate) for way, candidate in zip(ways, candidates, strict=True))
    moved = next((each.offload for each in candidates if not each.offload.is_nothing), candidates[0].offload)
    decision = Decision(replace(candidates[0], offload=moved), ways[0].sharding, spans)
    return decision, evaluate_decision(decision, tables), tables


def _table(way: StageWay, candidate: Candidate) -> StageTable:
    return stage_table(way.costs, candidate, way.sharding, way.borders)


def _stage(stage: Stage, way: StageWay, candidate: Candidate, devices: DeviceRange) -> Stage:
    mesh = candidate.mesh
    return replace(
        stage,
        devices=(devices,),
        axes=replace(stage.axes, dp=mesh.dp, tp=mesh.tp, cp=mesh.cp, ep=mesh.ep, ulysses=mesh.ulysses, etp=mesh.etp),
        zero_stage=candidate.zero_stage,
        shard_ranks=candidate.shard_ranks,
        offload=candidate.offload,
        gradients=candidate.gradients,
        shardings=operator_shardings(way.costs, way.candidate, way.sharding),
        sequence_parallel=candidate.boundary.dim is not None,
    )


def _energy_j(ways: Sequence[StageWay], decision: Decision, cost: DecisionCost, tables: Sequence[StageTable]) -> float:
    total = 0.0
    for rank, way in enumerate(ways):
        parts = rank_breakdown(decision, cost, tables, rank)
        computing_s = parts.compute_s + parts.recompute_s + parts.optimizer_s
        communicating_s = max(0.0, cost.step_time_s - computing_s - parts.bubble_s)
        busy = BusyTime(computing_s, communicating_s, cost.step_time_s)
        total += way.devices * device_energy_j(way.group.node.device, busy)
    return total


# Given plans whose stages differ, predicted anew: each stage's table is that of a pipeline of its like.


def predict_stagewise(request: TrainingRequest, layout: Stagewise) -> Plan:
    """The stages with their figures predicted anew; infeasible, with the reason, where they exceed memory or the SLO.

    Raises PlanFileError where they do not belong to the request.
    """
    pipelines, placement = layout.pipelines, layout.placement
    request = arranged(request, arrangement_of(placement))
    ways: list[StageWay] = []
    spans: tuple[StageSpan, ...] = ()
    for index in range(len(pipelines.stages)):
        sized, alike = pipelines_of_its_like(request, pipelines, index)
        costs = TrainingCosts(sized)
        decision = decision_of(sized, costs, alike, optimizer=placement.optimizer)
        ways.append(given_way(request, pipelines, index, costs, decision))
        spans = decision.spans
    require_room(request, ways)
    certificate = Certificate(Status.FEASIBLE, None, None, None, "s", GIVEN_PLAN)
    predicted = stagewise_plan(request, ways, spans, certificate=certificate, stats=SearchStats(1, 1, 0.0))
    assert predicted.predicted is not None and predicted.predicted.step_time_s is not None
    step_s = predicted.predicted.step_time_s
    predicted = replace(predicted, certificate=replace(certificate, objective=step_s))
    predicted = in_arrangement(predicted, arrangement_of(placement))
    cost = stagewise_cost(ways, spans)
    reason = _memory_reason(cost, request.search.risk) or crowded_reason(cost) or slo_reason(request, step_s)
    return judged(predicted, reason)


def _memory_reason(cost: DecisionCost, risk: float) -> Reason | None:
    """Reason of the first stage that needs more memory than a device has; None where all fit."""
    for index, stage in enumerate(cost.stages):
        if stage.need_bytes > stage.capacity_bytes:
            need, have = stage.law.margin(risk) * stage.device_bytes, stage.usable_bytes
            message = f"device memory: stage {index} needs {need:.4g} bytes at a risk of {risk:g}, a device has {have:.4g}"
            return Reason("device_memory", need, have, "bytes", message, index)
    return None


# Reads stages that differ of a plan that was given, not searched for.


def pipelines_of_its_like(request: TrainingRequest, pipelines: Pipelines, index: int) -> tuple[TrainingRequest, Pipelines]:
    """Pipelines all of whose stages are like one of the given, and the request on stages of its size, whose costs are the
    stage's.

    Raises PlanFileError where the stages can't go together.
    """
    axes, microbatch, stage = pipelines.axes, pipelines.microbatch, pipelines.stages[index]
    if stage.sequence_parallel is None:
        raise PlanFileError("stages that differ need their own shardings", given=f"stage {index}")
    for name, choice in OF_MESHES.items():
        value = getattr(pipelines, name)
        if value is not choice.usual:
            raise PlanFileError(choice.unlike_stages.given, given=f"{name} {value}", allowed=choice.usual.value)
    sequences = axes.dp * microbatch.size
    if sequences % stage.axes.dp or stage.axes.pp != len(pipelines.stages):
        raise PlanFileError(
            "the replicas of a stage can't share a micro-batch evenly, or its pp is not the number of stages",
            given=f"stage {index}: dp {stage.axes.dp}, pp {stage.axes.pp}",
            allowed=f"dp a divisor of {sequences}, pp {len(pipelines.stages)}",
        )
    size = stage.axes.dp * stage.axes.tp * stage.axes.cp
    alike = tuple(
        replace(
            each,
            axes=stage.axes,
            zero_stage=stage.zero_stage,
            shard_ranks=stage.shard_ranks,
            offload=stage.offload,
            gradients=stage.gradients,
        )
        for each in pipelines.stages
    )
    of_its_like = replace(
        pipelines,
        axes=stage.axes,
        stages=alike,
        shardings=stage.shardings,
        sequence_parallel=stage.sequence_parallel,
        microbatch=Microbatch(sequences // stage.axes.dp, microbatch.count),
    )
    return sized_request(request, group_of_stage(request, stage), size, pp=len(pipelines.stages)), of_its_like


def group_of_stage(request: TrainingRequest, stage: Stage) -> NodeGroup:
    """The node group that holds all of a stage's ranks; raises PlanFileError where none does."""
    ends = [rank for devices in stage.devices for rank in (devices.first, devices.first + devices.count - 1)]
    inside = min(ends, default=-1) >= 0 and max(ends) < request.cluster.n_devices
    groups = {request.cluster.group_of(rank).name: request.cluster.group_of(rank) for rank in ends} if inside else {}
    if len(groups) != 1:
        given = ", ".join(f"{devices.first} to {devices.first + devices.count - 1}" for devices in stage.devices)
        raise PlanFileError("a stage that differs from others lies in one node group", given=f"ranks {given}")
    return next(iter(groups.values()))


def given_way(request: TrainingRequest, pipelines: Pipelines, index: int, costs: TrainingCosts, decision: Decision) -> StageWay:
    """The way in which a stage of given pipelines is run, by the decision that the pipelines of its like stand for."""
    own, *neighbours = (
        None if stage is None else group_of_stage(request, stage)
        for stage in (
            pipelines.stages[index],
            pipelines.stages[index - 1] if index else None,
            pipelines.stages[index + 1] if index + 1 < len(pipelines.stages) else None,
        )
    )
    assert own is not None
    axes = pipelines.stages[index].axes
    borders = stage_links(request.cluster, own, before=neighbours[0], behind=neighbours[1])
    return StageWay(costs, decision.candidate, decision.sharding, own, axes.dp * axes.tp * axes.cp, borders)


def require_room(request: TrainingRequest, ways: Sequence[StageWay]) -> None:
    """Raise PlanFileError where stages have more devices than their node group."""
    for group in request.cluster.groups:
        used = sum(way.devices for way in ways if way.group == group)
        if used > group.n_devices:
            raise PlanFileError(
                f"the plan needs more devices than the cluster has in {group.name}",
                given=used,
                allowed=f"at most {group.n_devices}",
            )
