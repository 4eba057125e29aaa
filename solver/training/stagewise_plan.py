"""The plan record of stages that differ, from what each of them is; and read back from a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodels.energy import BusyTime, device_energy_j
from costmodels.errors import PlanFileError
from solver.plan import Certificate, DeviceRange, Microbatch, Plan, SearchStats, Stage
from solver.request import PlanRequest, TrainingWorkload
from solver.training.breakdown import rank_breakdown
from solver.training.costs import TrainingCosts
from solver.training.evaluate import Decision, DecisionCost, StageSpan, evaluate_decision
from solver.training.report import decided_plan, operator_shardings
from solver.training.space import Candidate
from solver.training.stage_sizes import laid_out, sized_request
from solver.training.stage_table import Sharding, StageKind, StageTable


@dataclass(frozen=True, eq=False)
class StageWay:
    """What one stage is: its candidate (degrees, micro-batch, place of state) and sharding, with the costs that these have on
    ``devices`` of them."""

    costs: TrainingCosts
    candidate: Candidate
    sharding: Sharding
    devices: int


class _Frame(TrainingCosts):
    """Costs of the whole request in which each pipeline rank has a table of its own."""

    def __init__(self, request: PlanRequest, tables: tuple[StageTable, ...]):
        super().__init__(request)
        self._tables = tables

    def stage_tables(self, candidate: Candidate, sharding: Sharding, kinds: tuple[StageKind, ...]) -> tuple[StageTable, ...]:
        """The tables of the ranks, whatever the candidate."""
        return self._tables


def stagewise_plan(
    request: PlanRequest,
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
    frame = _Frame(sized_request(request, ways[0].devices, pp=len(ways)), tables)
    plan = decided_plan(request, frame, decision, cost, certificate=certificate, stats=stats)
    ranges = laid_out([way.devices for way in ways])
    stages = tuple(
        _stage(stage, way, candidate, place)
        for stage, way, candidate, place in zip(plan.stages, ways, candidates, ranges, strict=True)
    )
    assert plan.predicted is not None
    energy_j = _energy_j(request, decision, cost, tables, [way.devices for way in ways])
    return replace(
        plan,
        stages=stages,
        devices=sum(way.devices for way in ways),
        predicted=replace(plan.predicted, energy_per_step_j=energy_j),
    )


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
    return way.costs.table(candidate, way.costs.stage_kinds(way.candidate)[0], way.sharding)


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


def _energy_j(
    request: PlanRequest, decision: Decision, cost: DecisionCost, tables: Sequence[StageTable], devices: Sequence[int]
) -> float:
    (group,) = request.cluster.groups
    total = 0.0
    for rank, count in enumerate(devices):
        parts = rank_breakdown(decision, cost, tables, rank)
        computing_s = parts.compute_s + parts.recompute_s + parts.optimizer_s
        communicating_s = max(0.0, cost.step_time_s - computing_s - parts.bubble_s)
        total += count * device_energy_j(group.node.device, BusyTime(computing_s, communicating_s, cost.step_time_s))
    return total


def is_stagewise(plan: Plan) -> bool:
    """Whether stages of a plan may differ in degrees: each then says how its own operators are sharded."""
    return any(stage.shardings for stage in plan.stages)


def view_of_stage(request: PlanRequest, plan: Plan, index: int) -> tuple[PlanRequest, Plan]:
    """The plan as if all stages were like one of them, and the request on stages of its size, whose costs are the stage's.

    Raises PlanFileError where the stages can't go together.
    """
    axes, microbatch, stage = plan.axes, plan.microbatch, plan.stages[index]
    if axes is None or microbatch is None or stage.sequence_parallel is None or len(request.cluster.groups) != 1:
        raise PlanFileError(
            "stages that differ need axes, a micro-batch, their own shardings and one node group", given=f"stage {index}"
        )
    assert isinstance(request.workload, TrainingWorkload)
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
    return sized_request(request, size, pp=len(plan.stages)), view
