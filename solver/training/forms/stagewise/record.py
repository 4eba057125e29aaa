"""The plan record of stages that differ, from what each of them is; and read back from a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.costmodels.cluster.cluster import Device, NodeGroup
from meshwright.costmodels.cluster.energy import BusyTime, device_energy_j
from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, SearchStats
from meshwright.solver.answer.stage import DeviceRange, Microbatch, Stage
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.breakdown import rank_breakdown
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, DecisionCost, StageSpan, evaluate_decision
from meshwright.solver.training.costs.stage_table import Sharding, StageKind, StageTable
from meshwright.solver.training.forms.stagewise.stage_sizes import Borders, laid_out, sized_request, stage_links
from meshwright.solver.training.forms.stagewise.stage_ways import stage_table
from meshwright.solver.training.report.plan_report import decided_plan, operator_shardings
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


class _Frame(TrainingCosts):
    """Costs of the whole request in which each pipeline rank has a table of its own."""

    def __init__(self, request: TrainingRequest, tables: tuple[StageTable, ...]):
        super().__init__(request)
        self._tables = tables

    def stage_tables(self, candidate: Candidate, sharding: Sharding, kinds: tuple[StageKind, ...]) -> tuple[StageTable, ...]:
        """The tables of the ranks, whatever the candidate."""
        return self._tables


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
    frame = _Frame(sized_request(request, ways[0].group, ways[0].devices, pp=len(ways)), tables)
    plan = decided_plan(
        request, frame, decision, cost, certificate=certificate, stats=stats, devices=_devices_in_use(request, ways)
    )
    ranges = laid_out(request.cluster, [(way.group, way.devices) for way in ways])
    stages = tuple(
        _stage(stage, way, candidate, place)
        for stage, way, candidate, place in zip(plan.stages, ways, candidates, ranges, strict=True)
    )
    assert plan.predicted is not None
    energy_j = _energy_j(ways, decision, cost, tables)
    return replace(
        plan,
        stages=stages,
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


def is_stagewise(plan: Plan) -> bool:
    """Return True if stages of a plan may differ in degrees. Each stage then names the sharding of its own operators."""
    return any(stage.shardings for stage in plan.stages)


def view_of_stage(request: TrainingRequest, plan: Plan, index: int) -> tuple[TrainingRequest, Plan]:
    """The plan as if all stages were like one of them, and the request on stages of its size, whose costs are the stage's.

    Raises PlanFileError where the stages can't go together.
    """
    axes, microbatch, stage = plan.axes, plan.microbatch, plan.stages[index]
    if axes is None or microbatch is None or stage.sequence_parallel is None:
        raise PlanFileError("stages that differ need axes, a micro-batch and their own shardings", given=f"stage {index}")
    sequences = axes.dp * microbatch.size
    if sequences % stage.axes.dp or stage.axes.pp != len(plan.stages):
        raise PlanFileError(
            "the replicas of a stage can't share a micro-batch evenly, or its pp is not the number of stages",
            given=f"stage {index}: dp {stage.axes.dp}, pp {stage.axes.pp}",
            allowed=f"dp a divisor of {sequences}, pp {len(plan.stages)}",
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
        for each in plan.stages
    )
    view = replace(
        plan,
        axes=stage.axes,
        stages=alike,
        shardings=stage.shardings,
        sequence_parallel=stage.sequence_parallel,
        microbatch=Microbatch(sequences // stage.axes.dp, microbatch.count),
    )
    return sized_request(request, group_of_stage(request, stage), size, pp=len(plan.stages)), view


def group_of_stage(request: TrainingRequest, stage: Stage) -> NodeGroup:
    """The node group that holds all of a stage's ranks; raises PlanFileError where none does."""
    ends = [rank for devices in stage.devices for rank in (devices.first, devices.first + devices.count - 1)]
    inside = min(ends, default=-1) >= 0 and max(ends) < request.cluster.n_devices
    groups = {request.cluster.group_of(rank).name: request.cluster.group_of(rank) for rank in ends} if inside else {}
    if len(groups) != 1:
        given = ", ".join(f"{devices.first} to {devices.first + devices.count - 1}" for devices in stage.devices)
        raise PlanFileError("a stage that differs from others lies in one node group", given=f"ranks {given}")
    return next(iter(groups.values()))


def given_way(request: TrainingRequest, plan: Plan, index: int, costs: TrainingCosts, decision: Decision) -> StageWay:
    """Return the way in which a stage of a given plan runs, by the decision that its view stands for."""
    own, *neighbours = (
        None if stage is None else group_of_stage(request, stage)
        for stage in (
            plan.stages[index],
            plan.stages[index - 1] if index else None,
            plan.stages[index + 1] if index + 1 < len(plan.stages) else None,
        )
    )
    assert own is not None
    axes = plan.stages[index].axes
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
