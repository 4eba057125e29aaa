"""The decision that a given plan of equal pipelines stands for."""

from __future__ import annotations

from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.dims import SEQ
from meshwright.solver.answer.layouts import Pipelines
from meshwright.solver.blocks.tp_strategies import REPLICATED, sharded
from meshwright.solver.problem.carried_choices import MeshChoices
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision
from meshwright.solver.training.costs.stage_table import Sharding
from meshwright.solver.training.forms.uniform.given import (
    given_branches,
    given_choices,
    given_pipelining,
    given_shard_ranks,
    given_spans,
    given_tp_overlap,
)
from meshwright.solver.training.space.candidates import SOME_LAYERS, Candidate
from meshwright.solver.training.space.implementation import implementation_of
from meshwright.solver.training.space.meshes import Mesh, experts_fit
from meshwright.solver.training.space.packed_documents import keeps_documents_together
from meshwright.solver.training.space.sequence_split import heads_fit, sequence_fits


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
        choices=MeshChoices.of(pipelines, dp=axes.dp, pp=axes.pp),
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
