"""Predicts given plans of equal pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.dims import SEQ
from meshwright.costmodels.pipeline import TOKEN_SLICED, Schedule, fills, n_copies
from meshwright.solver.answer.arrangement import arranged, arrangement_of, in_arrangement
from meshwright.solver.answer.layouts import Pipelines, Placement, Uniform, record_as
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import GIVEN_PLAN, Certificate, Reason, SearchStats, Status
from meshwright.solver.answer.stage import Axes, Stage
from meshwright.solver.blocks.recompute import modules_of, operators_again
from meshwright.solver.blocks.tp_strategies import REPLICATED, sharded
from meshwright.solver.problem.carried_choices import MeshChoices, StageChoices
from meshwright.solver.problem.choices import Gradients, Recompute, TpOverlap
from meshwright.solver.problem.declared.expert_overlap import ExpertOverlap
from meshwright.solver.problem.declared.recompute_modules import sets_of
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.layer_dag import layer_dag
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, DecisionCost, Sharding, StageSpan, evaluate_decision, positions
from meshwright.solver.training.costs.part_borders import FirstLayers
from meshwright.solver.training.report.plan_report import decided_plan, host_memory_reason, memory_reason, slo_reason
from meshwright.solver.training.search.partition import MemoryShortfall
from meshwright.solver.training.space.adapters import keeps_documents_together
from meshwright.solver.training.space.candidates import SOME_LAYERS, Candidate, may_pair
from meshwright.solver.training.space.implementation import implementation_of
from meshwright.solver.training.space.meshes import Mesh, experts_fit
from meshwright.solver.training.space.schedules import PLAIN, Pipelining
from meshwright.solver.training.space.sliced_sequences import (
    heads_fit,
    keys_can_be_gathered,
    passes_in_slices,
    sequence_fits,
    suits_slices,
)
from meshwright.solver.training.space.state_places import StatePlace, has_drives, may_move


def predict_uniform(request: TrainingRequest, layout: Uniform) -> Plan:
    """The pipelines with their figures predicted anew; infeasible, with the reason, where they exceed memory or the SLO.

    Raises PlanFileError where they do not belong to the request.
    """
    return predict_pipelines(request, layout.pipelines, layout.placement)


def predict_pipelines(request: TrainingRequest, pipelines: Pipelines, placement: Placement) -> Plan:
    """The same of pipelines on their own, as those of one node group."""
    request = arranged(request, arrangement_of(placement))
    costs = TrainingCosts(request)
    decision = decision_of(request, costs, pipelines, optimizer=placement.optimizer)
    kinds = costs.stage_kinds(decision.candidate)
    tables = costs.stage_tables(decision.candidate, decision.sharding, kinds)
    cost = evaluate_decision(decision, tables)
    certificate = Certificate(Status.FEASIBLE, cost.step_time_s, None, None, "s", GIVEN_PLAN)
    predicted = decided_plan(request, costs, decision, cost, certificate=certificate, stats=SearchStats(1, 1, 0.0))
    predicted = in_arrangement(predicted, arrangement_of(placement))
    worst = max(range(len(cost.stages)), key=lambda i: cost.stages[i].need_bytes - cost.stages[i].capacity_bytes)
    stage = cost.stages[worst]
    reason = crowded_reason(cost) or slo_reason(request, cost.step_time_s)
    if stage.need_bytes > stage.capacity_bytes:
        shortfall = MemoryShortfall(worst, stage.need_bytes, stage.capacity_bytes)
        reason = memory_reason(decision.candidate, shortfall, tables[worst], risk=request.search.risk)
    return judged(predicted, reason)


def judged(predicted: Plan, reason: Reason | None) -> Plan:
    """The plan as it is predicted, infeasible where there is a reason."""
    if reason is None:
        return predicted
    certificate = replace(predicted.certificate, status=Status.INFEASIBLE)
    return replace(predicted, feasible=False, certificate=certificate, reason=reason)


def crowded_reason(cost: DecisionCost) -> Reason | None:
    """Reason of a plan that moves more away than the host and its drives hold; None of one that does not."""
    crowded = next((i for i, stage in enumerate(cost.stages) if not stage.fits_away), None)
    return None if crowded is None else host_memory_reason(crowded, cost.stages[crowded])


# Reads schedule and layers of a plan record that was given, not searched for.


def given_pipelining(pipelines: Pipelines, request: TrainingRequest) -> Pipelining:
    """The schedule of a plan with its chunks a rank and its token slices; raises PlanFileError for one that can't run on the
    plan's pipeline."""
    names = [schedule.value for schedule in Schedule]
    if pipelines.schedule not in names:
        raise PlanFileError("unknown pipeline schedule", given=pipelines.schedule, allowed=", ".join(names))
    if pipelines.axes.pp == 1:
        return PLAIN
    schedule = Schedule(pipelines.schedule)
    if schedule in TOKEN_SLICED or pipelines.token_slices:
        return _given_slices(pipelines, schedule, request)
    copies = n_copies(schedule)
    chunks = len(pipelines.stages[0].chunk_layers) if copies == 1 else 1
    choice = Pipelining(schedule, max(1, chunks))
    n_parts = sum(max(1, len(stage.chunk_layers)) for stage in pipelines.stages)
    expected = choice.n_parts(pipelines.axes.pp) * copies
    if n_parts != expected or not fills(schedule, pipelines.axes.pp, pipelines.microbatch.count, choice.chunks):
        raise PlanFileError(
            "the pipeline can't run this schedule",
            given=f"{schedule.value}: {pipelines.axes.pp} stages, {n_parts} parts, {pipelines.microbatch.count} micro-batches",
            allowed=f"{expected} parts, and enough micro-batches to fill the schedule",
        )
    return choice


def _given_slices(pipelines: Pipelines, schedule: Schedule, request: TrainingRequest) -> Pipelining:
    axes, lengths = pipelines.axes, tuple(each.tokens for each in pipelines.token_slices)
    divides = not pipelines.sequence_parallel or all(tokens % axes.tp == 0 for tokens in lengths)
    cuts = len(lengths) > 1 and min(lengths) > 0 and sum(lengths) == request.workload.seq_len and divides
    if schedule not in TOKEN_SLICED or not cuts or any(stage.chunk_layers for stage in pipelines.stages):
        raise PlanFileError(
            "the plan's token slices can't run",
            given=f"slices of {list(lengths)} tokens under {schedule.value}, tp {axes.tp}",
            allowed=f"two or more of {request.workload.seq_len} tokens together, which tp divides beside sequence parallelism, "
            f"under {', '.join(sorted(TOKEN_SLICED))}",
        )
    places = [StatePlace(s.zero_stage, s.shard_ranks, s.offload, gradients=s.gradients) for s in pipelines.stages]
    light = any(stage.recompute is Recompute.FINE_GRAINED for stage in pipelines.stages)
    fits = axes.cp == 1 and pipelines.tp_overlap is TpOverlap.EXPOSED and not light and all(suits_slices(p) for p in places)
    if not fits or not passes_in_slices(request.model):
        raise PlanFileError(
            "sequences can't pass in token slices here",
            given=f"cp {axes.cp}, ZeRO-{pipelines.stages[0].zero_stage}, model {request.model.name}",
            allowed="a chain of layers with causal attention, cp 1, ZeRO 0 or 1, nothing but optimizer states on the host, no "
            "chunked products, gradients kept, recompute none, selective or full",
        )
    return Pipelining(schedule, slices=lengths)


def given_shard_ranks(pipelines: Pipelines, cluster: Cluster) -> int | None:
    """Ranks among which ZeRO shards, where they are fewer than dp x cp; raises PlanFileError where they can't be."""
    stage, axes = pipelines.stages[0], pipelines.axes
    if len({(each.shard_ranks, each.offload, each.gradients) for each in pipelines.stages}) > 1:
        raise PlanFileError("stages differ in shard_ranks, offload or gradients", allowed="the same for all stages")
    if stage.gradients is Gradients.RELEASED and pipelines.microbatch.count > 1:
        raise PlanFileError("gradients that are released can't be summed over micro-batches", allowed="one micro-batch a step")
    _require_movable(stage, axes, pipelines.schedule)
    if stage.offload.on_drives and not has_drives(cluster):
        raise PlanFileError("the plan keeps state on NVMe drives", allowed="nodes that have 'nvme'")
    ranks = stage.shard_ranks
    spread = axes.ep > 1 or axes.etp is not None
    if ranks is not None and (stage.zero_stage == 0 or spread or ranks < 2 or axes.dp * axes.cp % ranks):
        raise PlanFileError(
            "shard_ranks can't be",
            given=f"{ranks} under ZeRO-{stage.zero_stage}, dp x cp {axes.dp * axes.cp}, ep {axes.ep}",
            allowed="a divisor of dp x cp above 1, under ZeRO 1 to 3 and ep 1",
        )
    return ranks


def _require_movable(stage: Stage, axes: Axes, schedule: str) -> None:
    moved, of_ranks = stage.offload, stage.zero_stage if axes.dp * axes.cp > 1 else None
    place = StatePlace(stage.zero_stage, stage.shard_ranks, moved)
    suits = place.suits(Schedule(schedule))
    if not (suits and may_move(of_ranks, stage.shard_ranks, moved)):
        raise PlanFileError(
            "these shares of weights and gradients can't lie on the host",
            given=f"{moved.weights:g} of weights, {moved.gradients:g} of gradients under ZeRO-{stage.zero_stage}",
            allowed="weights under ZeRO-3, gradients from ZeRO-2 up without shard_ranks or DualPipe, or one rank",
        )


def given_choices(pipelines: Pipelines, costs: TrainingCosts, pipelining: Pipelining) -> StageChoices:
    """Return the choices of all stages; raises PlanFileError where so many first layers of each part can't be recomputed, or
    stages differ in what they recompute of layers."""
    stages, model = pipelines.stages, costs.request.model
    modules = _given_modules(stages, model)
    of_stages = {replace(record_as(StageChoices, stage), recompute_modules=modules) for stage in stages}
    (choices, *others) = of_stages
    if not others and not choices.recomputes_some:
        return choices
    firsts = [costs.first_layers(each) for each in of_stages]
    numbers = [None if first is None else first.number for first in firsts]
    some = numbers[0] in range(1, len(model.layers)) and model.is_chain and pipelining.of_some_layers(len(stages)) is not None
    full = all(stage.recompute is Recompute.FULL and not stage.offload.activations for stage in stages)
    if others or not some or not full:
        listed = ", ".join(sorted(map(str, numbers)))
        raise PlanFileError(
            "recompute_layers can't be",
            given=f"{listed} of {len(model.layers)} layers on {len(stages)} stages, recompute {stages[0].recompute.value}",
            allowed="one number for all stages, of layers of each part, recompute full, no activations on the host, no "
            "branches, a schedule whose backward pass is whole",
        )
    return choices


def _given_modules(stages: Sequence[Stage], model: ModelGraph) -> str | None:
    """The modules that the stages with fine-grained recomputation run again, None for the usual ones."""
    named = {stage.recompute_modules for stage in stages if stage.recompute is Recompute.FINE_GRAINED}
    beside = {stage.recompute_modules for stage in stages if stage.recompute is not Recompute.FINE_GRAINED} - {None}
    modules = next(iter(named), None)
    known = modules is None or modules in sets_of(modules_of(model), (modules,), operators_again(model))
    if len(named) > 1 or beside or not known:
        raise PlanFileError(
            "recompute_modules can't be",
            given=", ".join(sorted({str(stage.recompute_modules) for stage in stages})),
            allowed="one set for all stages with fine-grained recompute, null for others",
        )
    return modules


def given_tp_overlap(pipelines: Pipelines) -> TpOverlap:
    """Return the overlap of gathers and scatters over tp; raises PlanFileError for chunks of what is neither gathered nor
    scattered."""
    if pipelines.tp_overlap is TpOverlap.CHUNKED and (pipelines.axes.tp == 1 or not pipelines.sequence_parallel):
        raise PlanFileError(
            "tp_overlap can't be chunked",
            given=f"tp {pipelines.axes.tp}, sequence_parallel {pipelines.sequence_parallel}",
            allowed="tp above 1 with sequence parallelism",
        )
    return pipelines.tp_overlap


def _given_expert_overlap(
    pipelines: Pipelines, mesh: Mesh, pipelining: Pipelining, modes: tuple[Recompute, ...]
) -> ExpertOverlap | None:
    """Return how exchanges with experts run; raises PlanFileError for what nothing can run beside."""
    if pipelines.expert_overlap is not ExpertOverlap.BATCH:
        return None
    m = pipelines.microbatch.count
    if mesh.ep == 1 or Recompute.FULL in modes or not may_pair(pipelining, pp=mesh.pp, n_microbatches=m):
        raise PlanFileError(
            "expert_overlap can't be batch",
            given=f"ep {mesh.ep}, {pipelining.schedule.value}, pp {mesh.pp}, {m} micro-batches, recompute {', '.join(modes)}",
            allowed="ep above 1, interleaved-1f1b or one stage, two micro-batches a stage, no whole layers recomputed",
        )
    return ExpertOverlap.BATCH


def given_spans(
    pipelines: Pipelines, layers: Sequence[str], candidate: Candidate, again: FirstLayers | None
) -> tuple[StageSpan, ...]:
    """The parts of the model in order; raises PlanFileError unless they are the model's layers, each once a copy. ``again``
    says which layers of each part are recomputed, where not all or none are."""
    found: dict[int, StageSpan] = {}
    if len(pipelines.stages) != candidate.mesh.pp:
        raise PlanFileError("the plan does not have pp stages", given=len(pipelines.stages), allowed=str(candidate.mesh.pp))
    for stage, of_rank in zip(pipelines.stages, positions(candidate), strict=True):
        for position, span in zip(of_rank, _parts(stage, layers, again), strict=True):
            if found.setdefault(position, span) != span:
                raise PlanFileError("two ranks that hold the same part of the model differ", given=f"part {position}")
    expected = 0
    for position in range(len(found)):
        span = found[position]
        if span.first != expected:
            raise PlanFileError(
                "the plan's layers are not the model's layers in order",
                given=f"layers {span.first} to {span.last}",
                allowed=f"layer {expected} next, of {len(layers)}",
            )
        expected = span.last + 1
    if expected != len(layers):
        raise PlanFileError("the plan does not cover the model", given=expected, allowed=str(len(layers)))
    return tuple(found[position] for position in range(len(found)))


def given_branches(pipelines: Pipelines, model: ModelGraph, candidate: Candidate) -> tuple[StageSpan, ...]:
    """The stages of a model that branches; raises PlanFileError unless they are its layers, each once and after all that it
    reads."""
    if not candidate.pipelining.any_borders or len(pipelines.stages) != candidate.mesh.pp:
        raise PlanFileError(
            "stages of a model that branches are pp, each one part of it",
            given=f"{len(pipelines.stages)} stages, schedule {candidate.pipelining.schedule.value}",
            allowed=f"{candidate.mesh.pp} stages under a schedule without virtual stages",
        )
    dag, spans = layer_dag(model), []
    done: set[int] = set()
    for stage in pipelines.stages:
        members = sorted(_listed(stage, model.layers))
        done |= set(members)
        missing = sorted({source for layer in members for source in dag.reads[layer]} - done)
        if not members or missing:
            raise PlanFileError(
                "a stage reads layers that come after it" if members else "a stage holds no layer",
                given=f"layers {missing}" if members else None,
                allowed="stages that hold each layer after all that it reads",
            )
        spans.append(StageSpan(members[0], members[-1], stage.recompute, tuple(members)))
    if sorted(layer for span in spans for layer in span.numbers) != list(range(dag.n_layers)):
        raise PlanFileError("the plan does not hold each layer of the model once", given=len(done), allowed=str(dag.n_layers))
    return tuple(spans)


def _listed(stage: Stage, layers: Sequence[str]) -> list[int]:
    """Numbers of a rank's layers, in the order in which the plan has them."""
    listed: list[int] = []
    for blocks in stage.blocks:
        span = range(blocks.first, blocks.first + blocks.count)
        names = layers[blocks.first : blocks.first + blocks.count]
        if set(names) != {blocks.block} or len(names) != blocks.count:
            raise PlanFileError(
                "the plan's layers are not the model's layers in order",
                given=f"{blocks.count} x {blocks.block} from layer {blocks.first}",
                allowed=f"layers of {len(layers)}",
            )
        listed += span
    return listed


def _parts(stage: Stage, layers: Sequence[str], again: FirstLayers | None) -> Iterator[StageSpan]:
    """The chunks of a rank, each a run of layers."""
    listed = _listed(stage, layers)
    start = 0
    for count in stage.chunk_layers or (len(listed),):
        chunk = listed[start : start + count]
        if not chunk or chunk != list(range(chunk[0], chunk[0] + count)):
            raise PlanFileError("a model chunk is not a run of layers", given=chunk, allowed=f"{count} layers in a row")
        kept_from = None if again is None or stage.axes.pp == 1 else again.end_in(chunk[0], chunk[-1])
        yield StageSpan(chunk[0], chunk[-1], stage.recompute, kept_from=kept_from)
        start += count


# The decision that a given plan of equal pipelines stands for.


def decision_of(
    request: TrainingRequest, costs: TrainingCosts, pipelines: Pipelines, *, optimizer: Optimizer | None
) -> Decision:
    """The decision that equal pipelines stand for; raises PlanFileError where they do not belong to the request."""
    if not pipelines.stages:
        raise PlanFileError("this is not a plan with training stages", given="0 stages")
    workload, axes = request.workload, pipelines.axes
    mesh = Mesh(
        dp=axes.dp,
        tp=axes.tp,
        pp=axes.pp,
        cp=axes.cp,
        ep=axes.ep,
        ulysses=axes.ulysses,
        etp=axes.etp,
        choices=MeshChoices.of(pipelines, axes),
    )
    if mesh.stage_devices * mesh.pp > request.cluster.n_devices:
        raise PlanFileError(
            "the plan needs more devices than the cluster has",
            given=mesh.stage_devices * mesh.pp,
            allowed=f"at most {request.cluster.n_devices}",
        )
    if mesh.dp * pipelines.microbatch.size * pipelines.microbatch.count != workload.global_batch:
        raise PlanFileError(
            "dp x micro-batch size x count must be the global batch",
            given=(mesh.dp, pipelines.microbatch.size, pipelines.microbatch.count),
            allowed=str(workload.global_batch),
        )
    if not experts_fit(request.model, mesh):
        raise PlanFileError(
            "experts can't be spread evenly over the ep axis",
            given=f"ep {mesh.ep} of {mesh.expert_places} places of {mesh.expert_tp} ranks",
            allowed="a divisor of dp x cp x tp / etp and of the number of experts; etp is tp or 1",
        )
    if not heads_fit(request.model, tp=mesh.tp, cp=mesh.cp, ulysses=mesh.ulysses):
        raise PlanFileError(
            "heads can't be exchanged evenly over the ulysses axis",
            given=f"ulysses {mesh.ulysses} of cp {mesh.cp} beside tp {mesh.tp}",
            allowed="a divisor of cp that, times tp, divides the heads and key/value heads of every attention",
        )
    if mesh.gathers_keys and not keys_can_be_gathered(request.model, workload):
        raise PlanFileError(
            "keys and values of this attention can't be gathered",
            given=f"cp_keys {mesh.choices.cp_keys} for {request.model.name}",
            allowed="causal attention within a sequence, in 16 bits, with keys as wide as values",
        )
    scans = implementation_of(request.workload, request.search).scan_over_ranks
    if not sequence_fits(request.model, workload.seq_len, tp=mesh.tp, cp=mesh.cp, scans=scans):
        raise PlanFileError(
            "the sequence can't be split evenly over the cp axis",
            given=f"cp {mesh.cp} beside tp {mesh.tp}, sequences of {workload.seq_len}",
            allowed="a number of ranks that divides the sequence, two parts each, of a model with attention or scans",
        )
    if not keeps_documents_together(request, ring=mesh.ring):
        raise PlanFileError(
            "ranks of a ring do not share packed documents evenly",
            given=f"ulysses {mesh.ulysses} of cp {mesh.cp}",
            allowed="ulysses as large as cp, or no workload.lengths",
        )
    pipelining = given_pipelining(pipelines, request)
    modes = tuple(dict.fromkeys(stage.recompute for stage in pipelines.stages))
    if len(modes) > 1 and not pipelining.modes_by_stage:
        raise PlanFileError(
            "stages differ in recompute mode", given=", ".join(modes), allowed=f"one for all under {pipelining.schedule.value}"
        )
    choices = given_choices(pipelines, costs, pipelining)
    if choices.recomputes_some and mesh.pp > 1:
        modes = SOME_LAYERS
    boundary = sharded(SEQ) if pipelines.sequence_parallel else REPLICATED
    zero_stage = pipelines.stages[0].zero_stage
    candidate = Candidate(
        *(mesh, pipelines.microbatch.size, pipelines.microbatch.count, zero_stage, boundary, modes, pipelining),
        shard_ranks=given_shard_ranks(pipelines, request.cluster),
        offload=pipelines.stages[0].offload,
        optimizer=optimizer,
        gradients=pipelines.stages[0].gradients,
        tp_overlap=given_tp_overlap(pipelines),
        choices=choices,
        expert_overlap=_given_expert_overlap(pipelines, mesh, pipelining, modes),
    )
    if costs.model.is_chain:
        spans = given_spans(pipelines, costs.model.layers, candidate, costs.first_layers(choices))
    else:
        spans = given_branches(pipelines, costs.model, candidate)
    return Decision(candidate, _sharding_of(costs, candidate, pipelines), spans)


def _sharding_of(costs: TrainingCosts, candidate: Candidate, pipelines: Pipelines) -> Sharding:
    named = {(s.block, s.operator): s.strategy for s in pipelines.shardings}
    setting = costs.settings(candidate, costs.stage_kinds(candidate)[0])[0]
    sharding = []
    for block_name in costs.block_names:
        built = costs.problem(block_name, setting)
        if built is None:
            raise PlanFileError(f"block {block_name!r} can't be sharded over tp {candidate.mesh.tp}: a dim does not divide")
        choice = []
        for operator, options in zip(costs.model.block(block_name).operators, built.strategies, strict=True):
            names = [option.name for option in options]
            wanted = named.get((block_name, operator.name))
            if wanted not in names:
                raise PlanFileError(
                    f"operator {block_name}/{operator.name} has no such sharding", given=wanted, allowed=", ".join(names)
                )
            choice.append(names.index(wanted))
        sharding.append(tuple(choice))
    return tuple(sharding)
