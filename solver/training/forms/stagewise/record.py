"""The plan record of stages that differ, from what each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.costmodels.cluster.cluster import Device, NodeGroup
from meshwright.costmodels.cluster.rank_runs import BusyTime, device_energy_j
from meshwright.solver.answer.layouts import Stagewise
from meshwright.solver.answer.pipeline_plan import pipelines_of, placement_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, SearchStats
from meshwright.solver.answer.stage import DeviceRange, Stage
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.breakdown import rank_breakdown
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, DecisionCost, StageSpan, evaluate_decision
from meshwright.solver.training.costs.stage_table import Sharding, StageTable
from meshwright.solver.training.forms.stagewise.stage_sizes import Borders, laid_out, stage_table
from meshwright.solver.training.report.plan_report import decided_plan, operator_shardings
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.stage_sizes import sized_request


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
