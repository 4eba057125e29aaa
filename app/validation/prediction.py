"""The prediction of the cost models for a run: step time and memory of its own plan, from its inputs alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean

import numpy as np

from meshwright.app.validation.constants import Constants, cluster_name, with_constants
from meshwright.app.validation.conventions import (
    Convention,
    GradientReduction,
    HeadGradients,
    MemoryCount,
    MemoryRank,
    StateBuffers,
    UnstatedRecompute,
    convention,
)
from meshwright.app.validation.plans import GivenPlan, given_plan
from meshwright.app.validation.rows import Run
from meshwright.app.validation.unpredicted import NotPredictedError
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.training_state import (
    CONTEXT_BYTES,
    RESERVED_OVER_ALLOCATED,
    deepspeed_zero_bytes,
    deferred_head_bytes,
)
from meshwright.costmodels.model.dims import HIDDEN, VOCAB
from meshwright.costmodels.model.implementation import Implementation
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.units import DType
from meshwright.solver.blocks.sharding_problem import Criterion
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.stages.longest import objective_s
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, DecisionCost, StageSpan, evaluate_decision
from meshwright.solver.training.costs.stage_table import Sharding, StageKind, StageTable
from meshwright.solver.training.space.candidates import Candidate


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted figures of a run; memory is on the device and in the units that its source reports."""

    step_time_s: float
    peak_memory_gb: float
    fits: bool


def predict_run(run: Run, constants: Constants | None = None) -> Prediction:
    """Step time and memory of a run's plan; raises NotPredictedError with the reason.

    ``constants`` take the place of the rates that the hardware catalogue ships.
    """
    source = convention(run.source)
    try:
        prediction = _predicted(run, source, constants)
        if prediction.fits or run.recompute or source.unstated_recompute is UnstatedRecompute.NEVER:
            return prediction
        return _predicted(replace(run, recompute="full"), source, constants)
    except InvalidInputError as error:
        given = "" if error.given is None else f" ({error.given})"
        raise NotPredictedError(f"{error.problem}{given}") from error


def _predicted(run: Run, source: Convention, constants: Constants | None) -> Prediction:
    plan = given_plan(run, source)
    costs = _costs(_at_rates(plan.request, run, constants), plan.implementation)
    kinds = costs.stage_kinds(plan.candidate)
    sharding = _sharding(costs, plan.candidate, kinds)
    tables = costs.stage_tables(plan.candidate, sharding, kinds)
    decision = Decision(plan.candidate, sharding, launchers_spans(len(costs.model.layers), plan.candidate))
    cost = evaluate_decision(decision, tables)
    extra_s = [stage.extra_s for stage in cost.stages]
    if source.reduction is not GradientReduction.OVERLAPPED:
        extra_s = extra_without_overlap(costs, decision, kinds, tables, source.reduction)
    times_s, m = [stage.time_s for stage in cost.stages], plan.candidate.n_microbatches
    return Prediction(
        objective_s(times_s, extra_s, m, waiting=tables[0].waiting),
        *_memory(plan, decision, cost, tables, source, run.head_gradients),
    )


def launchers_spans(n_layers: int, candidate: Candidate) -> tuple[StageSpan, ...]:
    """Layers of each part of the model as launchers split them: evenly, the embedding with the first, the head with the last.

    Where the layers between do not divide, the first parts have one more.
    """
    parts, between = candidate.pipelining.n_parts(candidate.mesh.pp), n_layers - 2
    if parts == n_layers:
        # What is left when embedding and head count as layers (Megatron-LM's --account-for-embedding-in-pipeline-split).
        return tuple(StageSpan(layer, layer, candidate.recompute[0]) for layer in range(n_layers))
    if parts > between:
        raise NotPredictedError(f"{parts} stages of {between} layers")
    each, longer = divmod(between, parts)
    spans, first = [], 0
    for position in range(parts):
        last = first + each + (position < longer) - 1 + (position == 0) + (position == parts - 1)
        spans.append(StageSpan(first, last, candidate.recompute[0]))
        first = last + 1
    return tuple(spans)


def _at_rates(request: TrainingRequest, run: Run, constants: Constants | None) -> TrainingRequest:
    if constants is None:
        return request
    return replace(request, cluster=with_constants(request.cluster, cluster_name(run), constants))


@lru_cache(maxsize=64)
def _costs(request: TrainingRequest, implementation: Implementation) -> TrainingCosts:
    return TrainingCosts(request, implementation=implementation)


def _sharding(costs: TrainingCosts, candidate: Candidate, kinds: tuple[StageKind, ...]) -> Sharding:
    """The fastest sharding that the launcher can express: rows do not say more than tp and sequence parallelism."""
    setting = costs.settings(candidate, kinds[0])[0]

    def seconds(sharding: Sharding) -> float:
        names = zip(costs.block_names, sharding, strict=True)
        return sum(float(costs.block_cost(name, setting, choice)[Criterion.TIME_S]) for name, choice in names)

    fastest = min(costs.shardings(candidate, kinds), key=seconds, default=None)
    if fastest is None:
        raise NotPredictedError(f"tp {candidate.mesh.tp} does not divide the model's dims")
    return fastest


def extra_without_overlap(
    costs: TrainingCosts,
    decision: Decision,
    kinds: tuple[StageKind, ...],
    tables: Sequence[StageTable],
    reduction: GradientReduction,
) -> list[float]:
    """Return the seconds that a step adds once to each stage when its gradients travel after the backward pass, in one
    piece."""
    workload, candidate = costs.workload, decision.candidate
    in_fp32 = reduction is GradientReduction.IN_FP32_AFTER_BACKWARD
    travelling = DType.FP32 if in_fp32 else workload.gradient_dtype
    extra_s = []
    for rank, (kind, table) in enumerate(zip(kinds, tables, strict=True)):
        setting = costs.settings(candidate, kind)[0]
        by_block = [costs.block_cost(n, setting, c) for n, c in zip(costs.block_names, decision.sharding, strict=True)]
        held = np.r_[tuple(span.layers for span in decision.spans_of_rank(rank))]
        layers = costs.layer_block[held]
        synchronised_s = sum(float(by_block[i][Criterion.SYNC_S]) for i in layers)
        reduction_s = 0.0
        for criterion, group in (
            (Criterion.PARAMETERS, kind.topology.state),
            (Criterion.EXPERT_PARAMETERS, kind.topology.expert_state),
        ):
            parameters = sum(float(by_block[i][criterion]) for i in layers)
            gradients = parameters * travelling.size_bytes
            whole = in_fp32 or candidate.zero_stage == 0
            kind_of_sum = Collective.ALL_REDUCE if whole else Collective.REDUCE_SCATTER
            reduction_s += float(collective_s(kind_of_sum, gradients, group))
            if candidate.zero_stage > 0:
                gathered = parameters * workload.precision.size_bytes
                reduction_s += float(collective_s(Collective.ALL_GATHER, gathered, group))
        optimizer_s = float(table.parts.optimizer_s[held].sum()) + table.parts.step_host_s
        extra_s.append(reduction_s + synchronised_s + optimizer_s)
    return extra_s


def _memory(
    plan: GivenPlan,
    decision: Decision,
    cost: DecisionCost,
    tables: Sequence[StageTable],
    source: Convention,
    head_gradients: HeadGradients,
) -> tuple[float, bool]:
    """Memory on the reported device in the reported unit, and whether every stage fits."""
    held = [stage.need_bytes for stage in cost.stages]
    if source.state_buffers is StateBuffers.DEEPSPEED_ZERO:
        held = [need + _zero_buffers(plan, decision, rank, tables[rank]) for rank, need in enumerate(held)]
    if head_gradients is HeadGradients.DEFERRED:
        held[-1] += _deferred(plan)
    more_context = source.context_bytes - CONTEXT_BYTES
    reserved = [RESERVED_OVER_ALLOCATED * need for need in held]
    fits = all(
        need + more_context <= RESERVED_OVER_ALLOCATED * stage.capacity_bytes
        for need, stage in zip(reserved, cost.stages, strict=True)
    )
    match source.memory_count:
        case MemoryCount.ALLOCATED:
            shown_by_rank = held
        case MemoryCount.RESERVED:
            shown_by_rank = reserved
        case MemoryCount.PROCESS:
            shown_by_rank = [
                need + stage.overhead_bytes + more_context for need, stage in zip(reserved, cost.stages, strict=True)
            ]
    match source.memory_rank:
        case MemoryRank.FULLEST:
            shown = max(shown_by_rank)
        case MemoryRank.FIRST_STAGE:
            shown = shown_by_rank[0]
        case MemoryRank.LAST_STAGE:
            shown = shown_by_rank[-1]
        case MemoryRank.MEAN:
            shown = fmean(shown_by_rank)
    return shown / source.memory_unit_bytes, fits


def _deferred(plan: GivenPlan) -> float:
    """Return the bytes that the last stage keeps for weight gradients of the head that wait."""
    workload, candidate, dims = plan.request.workload, plan.candidate, plan.request.model.dims
    return deferred_head_bytes(
        tokens=candidate.microbatch * workload.seq_len // candidate.mesh.cp,
        hidden=dims[HIDDEN],
        vocab=-(-dims[VOCAB] // candidate.mesh.tp),
        n_microbatches=candidate.n_microbatches,
        dtype=workload.precision,
    )


def _zero_buffers(plan: GivenPlan, decision: Decision, rank: int, table: StageTable) -> float:
    workload, mesh = plan.request.workload, plan.candidate.mesh
    weights_bytes = sum(float(table.parts.weights_bytes[span.layers].sum()) for span in decision.spans_of_rank(rank))
    parameters = weights_bytes / workload.precision.size_bytes
    return deepspeed_zero_bytes(parameters, gradient_dtype=workload.gradient_dtype, shards=mesh.dp * mesh.cp)
