"""From a solved search to a Plan: stages, breakdown, runners-up, frontier, certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.documents import Fill
from meshwright.costmodels.model.operators import attention_pairs
from meshwright.costmodels.pipeline import TOKEN_SLICED, TRAITS, Schedule
from meshwright.costmodels.units import GIB, OverTime
from meshwright.solver.answer.layouts import Pipelines, Placement, PlanSlice, Uniform, named
from meshwright.solver.answer.plan import FrontierPoint, Plan
from meshwright.solver.answer.predicted import (
    SECONDS,
    USD_PER_MILLION_TOKENS,
    Certificate,
    Predicted,
    Reason,
    RunnerUp,
    SearchStats,
    Status,
    TimeBreakdown,
    status_without_plan,
    unfinished_search,
)
from meshwright.solver.answer.stage import Axes, DeviceRange, LayerSpan, Microbatch, OperatorSharding, Stage, StageMemory
from meshwright.solver.answer.timed_words import TimedFigure, TimedWords, step_seconds
from meshwright.solver.problem.choice import TRAINING
from meshwright.solver.problem.choices import Objective, Space
from meshwright.solver.problem.request import COST_TARGET, TrainingRequest
from meshwright.solver.problem.search import restrictions_text
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import (
    Decision,
    DecisionCost,
    Sharding,
    StageCost,
    StageSpan,
    StageTable,
    devices_of,
    step_energy_j,
    step_flops,
    time_breakdown,
)
from meshwright.solver.training.report.bands import calibrations_used, plan_bands
from meshwright.solver.training.report.device_counts import (
    Costed,
    SizedResult,
    cost_per_million_tokens,
    frontier,
)
from meshwright.solver.training.report.equals import STEP_TIME, energy_of, equal_form, equal_plans
from meshwright.solver.training.search.best_first import RELATIVE_TIE, SearchResult, Solved, decision_tables
from meshwright.solver.training.search.partition import MemoryShortfall
from meshwright.solver.training.space.candidates import Candidate, launcher_schedules, summary
from meshwright.solver.training.space.meshes import Mesh
from meshwright.solver.training.space.schedules import Pipelining

ONE_IN_TWENTY = 0.05

NOTES = (
    "gradient buckets are layers: each travels under the next layer's backward pass and slows it, the last one is exposed",
    "tensor-parallel communication is exposed but for what chunked products hide (tp_overlap); ring context parallelism "
    "hides under attention and slows it, gathers of keys and exchanges of heads do not",
    "pipeline sends are not hidden, but for those of interleaved 1F1B, which hide under the pass of another chunk, and of "
    "eager-1F1B, which hide under the passes of other micro-batches",
    "exchanges of tokens with experts show, but for those of DualPipe's pairs of passes, each of which hides the other's",
)
"""The assumptions of the time model about overlap; every training plan states them."""


def feasible_plan(
    request: TrainingRequest,
    costs: TrainingCosts,
    result: SearchResult,
    *,
    swept: Sequence[Costed] = (),
    sized: SizedResult | None = None,
) -> Plan:
    """The plan of a search that found one, in a part of the cluster that was chosen where ``sized`` says so.

    ``swept`` are further plans for the frontier.
    """
    assert result.best is not None and result.bound is not None
    best = result.best
    others = [Costed(request, costs, solved) for solved in (*result.alternatives, *result.near)]
    rivals = runners_up(costs, best, result)
    certificate = _step_certificate(request, best, result)
    if sized is not None:
        others, certificate = [*others, *sized.others], sized.certificate
        rivals = (*sized.runners_up, *(sized.revalued(rival) for rival in rivals))
    plan = decided_plan(
        request,
        costs,
        best.decision,
        best.cost,
        certificate=replace(certificate, operator_solvers=costs.operators.solvers),
        stats=SearchStats(result.n_candidates, result.n_solved, 0.0),
        runners_up=rivals[:MAX_RUNNERS_UP],
        frontier=frontier(Costed(request, costs, best), [*others, *swept]),
    )
    ranked = energy_of(request.cluster) if request.objective is Objective.ENERGY else STEP_TIME
    return replace(plan, equals=equal_plans(costs, result, slowest_s=request.longest_step_s, ranked=ranked))


def _step_certificate(request: TrainingRequest, best: Solved, result: SearchResult) -> Certificate:
    assert result.bound is not None
    return Certificate(
        status=Status.OPTIMAL if result.complete else Status.FEASIBLE,
        objective=best.value,
        bound=min(result.bound, best.value),
        gap=max(0.0, (best.value - result.bound) / best.value),
        unit="s",
        space=space_text(request),
    )


def decided_plan(
    request: TrainingRequest,
    costs: TrainingCosts,
    decision: Decision,
    cost: DecisionCost,
    *,
    certificate: Certificate,
    stats: SearchStats,
    runners_up: tuple[RunnerUp, ...] = (),
    frontier: tuple[FrontierPoint, ...] = (),
    tables: Sequence[StageTable] | None = None,
    devices: Sequence[tuple[Device, int]] | None = None,
) -> Plan:
    """The plan record of one decision: on ``devices`` of each kind, else on the first of the cluster; with ``tables`` of the
    pipeline ranks, else those of the candidate."""
    workload, candidate = request.workload, decision.candidate
    mesh = candidate.mesh
    tables = tables or costs.stage_tables(candidate, decision.sharding, costs.stage_kinds(candidate))
    tokens_per_s = workload.global_batch * workload.seq_len / cost.step_time_s
    n_ranks = mesh.stage_devices * mesh.pp
    used = request if devices else _on_nodes_of(request, n_ranks)
    devices = devices or devices_of(request.cluster, first=0, count=n_ranks)
    mfu = _mfu(request, devices, cost.step_time_s)
    stages = tuple(
        Stage(
            blocks=tuple(blocks for span in spans for blocks in _layer_spans(costs.model.layers, span)),
            devices=tuple(DeviceRange(first, mesh.run_devices) for first in mesh.ranks_of_stage(position).starts),
            axes=axes_of(mesh),
            recompute=spans[0].recompute,
            zero_stage=candidate.zero_stage,
            **named(candidate.choices.under(spans[0].recompute)),
            shard_ranks=candidate.shard_ranks,
            offload=candidate.offload,
            gradients=candidate.gradients,
            time_s=stage.time_s,
            hidden_s=stage.hidden_s,
            extra_s=stage.extra_s,
            in_flight=stage.in_flight,
            memory=_memory(table, spans, stage),
            chunk_layers=tuple(span.last + 1 - span.first for span in spans) if len(spans) > 1 else (),
        )
        for position, (stage, table) in enumerate(zip(cost.stages, tables, strict=True))
        for spans in (decision.spans_of_rank(position),)
    )
    law, peak_bytes = cost.stages[0].law, max(stage.memory.total_bytes for stage in stages)
    breakdown = time_breakdown(decision, cost, tables)
    return Plan(
        kind="training",
        feasible=True,
        certificate=certificate,
        devices=sum(number for _, number in devices),
        search=stats,
        calibration=calibrations_used(used),
        model=request.model.name,
        predicted=Predicted(
            tokens_per_s=tokens_per_s,
            peak_memory_bytes=peak_bytes,
            peak_memory_p95_bytes=law.margin(ONE_IN_TWENTY) * peak_bytes,
            chance_out_of_memory=max(law.chance_to_exceed(stage.device_bytes, stage.usable_bytes) for stage in cost.stages),
            step_time_s=cost.step_time_s,
            mfu=mfu,
            cost_per_million_tokens=cost_per_million_tokens(devices, tokens_per_s),
            energy_per_step_j=step_energy_j(request.cluster, decision, cost, tables),
            bands=plan_bands(
                request,
                axes_of(mesh),
                breakdown,
                [stage.time_s for stage in cost.stages],
                choices=mesh.choices,
                step_time_s=cost.step_time_s,
                tokens_per_s=tokens_per_s,
                mfu=mfu,
            ),
        ),
        layout=Uniform(
            Pipelines(
                axes=axes_of(mesh),
                stages=stages,
                shardings=operator_shardings(costs, candidate, decision.sharding),
                sequence_parallel=candidate.boundary.dim == SEQ,
                schedule=candidate.pipelining.schedule.value,
                microbatch=Microbatch(candidate.microbatch, candidate.n_microbatches),
                tp_overlap=candidate.tp_overlap,
                expert_overlap=candidate.expert_overlap,
                **named(mesh.choices),
                token_slices=_token_slices(candidate, tables[0]),
            ),
            Placement(optimizer=candidate.optimizer, breakdown=breakdown),
        ),
        runners_up=runners_up,
        frontier=frontier,
        notes=(*NOTES, *document_notes(request, step_s=cost.step_time_s)),
    )


def _on_nodes_of(request: TrainingRequest, n_ranks: int) -> TrainingRequest:
    """The request on the nodes that hold so many ranks: the others are idle, and no calibration of them or between is used."""
    groups, left = [], n_ranks
    for group in request.cluster.groups:
        nodes = min(group.nodes, -(-left // group.node.devices_per_node))
        left -= nodes * group.node.devices_per_node
        if nodes > 0:
            groups.append(replace(group, nodes=nodes))
    return replace(request, cluster=replace(request.cluster, groups=tuple(groups)))


def _token_slices(candidate: Candidate, table: StageTable) -> tuple[PlanSlice, ...]:
    if table.slices is None:
        return ()
    parts = zip(candidate.pipelining.slices, table.slices.forward, table.slices.backward, strict=True)
    return tuple(PlanSlice(tokens, forward, backward) for tokens, forward, backward in parts)


def infeasible_plan(request: TrainingRequest, reason: Reason, *, n_candidates: int, n_solved: int) -> Plan:
    """The answer without a plan: nothing in the space satisfies the constraints, or the search was stopped too early."""
    return Plan(
        kind="training",
        feasible=False,
        certificate=Certificate(status_without_plan(reason), None, None, None, "s", space_text(request)),
        devices=request.cluster.n_devices,
        search=SearchStats(n_candidates, n_solved, 0.0),
        calibration=calibrations_used(request),
        model=request.model.name,
        reason=reason,
    )


def space_text(request: TrainingRequest) -> str:
    """Return the space that the certificate's bound covers, in words."""
    search = request.search
    if search.space is Space.LAUNCHABLE:
        schedules = launcher_schedules(search.launcher)
        space = f"launchable by {search.launcher.value}: one recompute mode and one residual layout for all stages"
    else:
        schedules = frozenset(Schedule)
        *titles, last = (TRAITS[schedule].title for schedule in Schedule if Pipelining(schedule).modes_by_stage)
        by_stage = f"{', '.join(titles)} and {last}"
        space = f"free: any dim over the tp axis in each block, recompute chosen for each stage of {by_stage}"
        space += f", equal layers of {search.layer_kinds} kinds in turn" if search.layer_kinds > 1 else ""
    if search.system is not None:
        space = f"what {search.system.value} searches, {space}"
    restricted = restrictions_text(search, TRAINING)
    if not any(number > 1 for number in search.token_slices):
        schedules -= TOKEN_SLICED
    names = ", ".join(schedule.value for schedule in Schedule if schedule in schedules)
    return (
        f"{space}; equal dp x tp x cp in every stage, all {request.cluster.n_devices} devices, schedules {names}, uneven "
        f"stages where a rank holds one part of the model, else even parts but for the first and last, ZeRO 0-3, out of memory "
        f"with a chance of {search.risk:g} at most{restricted}"
    )


def memory_reason(candidate: Candidate, shortfall: MemoryShortfall, table: StageTable, *, risk: float) -> Reason:
    """Reason of a request in which no candidate fits: the one that comes closest, in numbers; ``table`` is of its stage."""
    law = table.law
    median = law.device_bytes(shortfall.need_bytes, overhead_bytes=table.parts.overhead_bytes)
    need, have = law.margin(risk) * median, table.usable_bytes
    return Reason(
        constraint="device_memory",
        need=need,
        have=have,
        unit="bytes",
        stage=shortfall.stage,
        message=(
            f"device memory: the plan that comes closest ({summary(candidate)}) takes {median / GIB:.2f} GiB on stage "
            f"{shortfall.stage}, {need / GIB:.2f} GiB at a risk of {risk:g}; a device has {have / GIB:.2f} GiB: "
            f"{(need - have) / GIB:.2f} GiB too little"
        ),
        remedies=(
            "add devices, or devices with more memory",
            "allow more recompute, higher ZeRO stages, or smaller micro-batches in 'search', if they are restricted",
            "shorten seq_len, or allow smaller optimizer states in search.optimizers (adamw_bf16, adamw_8bit, muon)",
            "let state move to host memory: search.offload_optimizer, offload_weights, offload_gradients, offload_activations",
        ),
    )


def host_memory_reason(stage: int, cost: StageCost) -> Reason:
    """Reason of a plan that moves more to the host, or else to the node's drives, than its devices' share of it."""
    of_host = cost.host_bytes > cost.host_capacity_bytes
    need, have = (cost.host_bytes, cost.host_capacity_bytes) if of_host else (cost.nvme_bytes, cost.nvme_capacity_bytes)
    # Buffers of what lies on the drives may take more than the whole share: then they are needed, too.
    need, have = need - min(0.0, have), max(0.0, have)
    where = "host" if of_host else "node's drives"
    return Reason(
        constraint="host_memory" if of_host else "nvme",
        need=need,
        have=have,
        unit="bytes",
        stage=stage,
        message=(
            f"{'host memory' if of_host else 'drives'}: each device of stage {stage} moves {need / GIB:.2f} GiB to its "
            f"{where}, its share of which is {have / GIB:.2f} GiB"
        ),
        remedies=("move smaller shares (offload)", "shard over more ranks", "use hosts with more memory, or drives"),
    )


def slo_reason(request: TrainingRequest, step_time_s: float, *, factor: float = 1.0) -> Reason | None:
    """Reason why the best step time breaks the SLO; None when it keeps it. A measured step takes ``factor`` times the predicted
    one at most, with the SLO's confidence; 1 where targets are in the cost model's time."""
    workload, slo = request.workload, request.slo
    promised_s = step_time_s * factor
    broken = [(f"slo.{name}", limit_s) for name, limit_s in request.longest_steps_s.items() if promised_s > limit_s]
    if not broken:
        return None
    name, limit_s = min(broken, key=lambda item: item[1])
    tokens = workload.global_batch * workload.seq_len
    upper = "" if factor == 1.0 else f", up to {promised_s:.4g} s with slo.confidence {slo.confidence:g}"
    if name == f"slo.{COST_TARGET}":
        return _costs_too_much(request, step_time_s, factor)
    return Reason(
        constraint=name,
        need=promised_s,
        have=limit_s,
        unit="s",
        message=(
            f"{name}: the fastest step that fits takes {step_time_s:.4g} s ({tokens / step_time_s:,.0f} tokens/s)"
            f"{upper}, the SLO allows {limit_s:.4g} s ({tokens / limit_s:,.0f} tokens/s): "
            f"{promised_s / limit_s:.3f} times too slow"
        ),
        remedies=_target_remedies("add devices, or faster ones", factor),
    )


def _costs_too_much(request: TrainingRequest, step_time_s: float, factor: float) -> Reason:
    """The reason of a target of cost, in its money."""
    most, each_s = request.slo.max_cost_per_million_tokens, request.usd_per_million_tokens_of_a_second
    assert most is not None and each_s is not None, "only a cluster with prices has a target of cost"
    cost, promised = step_time_s * each_s, step_time_s * factor * each_s
    upper = "" if factor == 1.0 else f", up to {promised:.3g} with slo.confidence {request.slo.confidence:g}"
    return Reason(
        constraint=f"slo.{COST_TARGET}",
        need=promised,
        have=most,
        unit=USD_PER_MILLION_TOKENS,
        message=(
            f"slo.{COST_TARGET}: the fastest step that fits, {step_time_s:.4g} s, costs {cost:.3g} USD per million tokens"
            f"{upper}, the SLO allows {most:.3g}: {promised / most:.3f} times too much"
        ),
        remedies=_target_remedies("use fewer devices (objective cost), or cheaper ones", factor),
    )


def _target_remedies(first: str, factor: float) -> tuple[str, ...]:
    surer = () if factor == 1.0 else ("ask for less slo.confidence, or report measured runs",)
    return (first, "relax the SLO", *surer, "lift restrictions in 'search'")


def promised_step_s(reason: Reason, request: TrainingRequest) -> float | None:
    """Return the step that the reason of a broken target says is taken at most, in seconds; None of another reason."""
    each_s = request.usd_per_million_tokens_of_a_second
    if reason.unit == USD_PER_MILLION_TOKENS and each_s is not None:
        return reason.need / each_s
    return reason.need if reason.unit == SECONDS else None


def axes_of(mesh: Mesh) -> Axes:
    """Degrees of a mesh, as a plan says them."""
    return Axes(dp=mesh.dp, tp=mesh.tp, pp=mesh.pp, cp=mesh.cp, ep=mesh.ep, ulysses=mesh.ulysses, etp=mesh.etp)


def _layer_spans(layers: Sequence[str], span: StageSpan) -> tuple[LayerSpan, ...]:
    spans: list[LayerSpan] = []
    for layer in span.numbers:
        if spans and spans[-1].block == layers[layer] and spans[-1].first + spans[-1].count == layer:
            last = spans.pop()
            spans.append(LayerSpan(last.block, last.first, last.count + 1))
        else:
            spans.append(LayerSpan(layers[layer], layer, 1))
    return tuple(spans)


def _memory(table: StageTable, spans: Sequence[StageSpan], cost: StageCost) -> StageMemory:
    layers = np.r_[tuple(span.layers for span in spans)]
    parts, law = table.parts, cost.law
    activations = cost.activation_bytes / law.activations + float(parts.slice_gradients_bytes[layers].sum())
    transient = cost.transient_bytes / law.transients
    state = (parts.weights_bytes, parts.gradients_bytes, parts.optimizer_bytes)
    weights, gradients, optimizer = (float(part[layers].sum()) for part in state)
    beside = float(parts.beside_state_bytes[layers].sum())
    counted = weights + gradients + optimizer + activations + transient + beside
    return StageMemory(
        weights_bytes=weights,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        activations_bytes=activations,
        transient_bytes=transient,
        overhead_bytes=parts.overhead_bytes + beside,
        host_bytes=cost.host_bytes + parts.host_buffer_bytes,
        nvme_bytes=cost.nvme_bytes,
        capacity_bytes=table.usable_bytes,
        fragmentation_bytes=law.allocator * cost.need_bytes - counted,
        learned_bytes=(law.scale - 1.0) * cost.device_bytes / law.scale,
    )


def operator_shardings(costs: TrainingCosts, candidate: Candidate, sharding: Sharding) -> tuple[OperatorSharding, ...]:
    """Strategy names of every operator, by distinct block."""
    setting = costs.settings(candidate, costs.stage_kinds(candidate)[0])[0]
    found = []
    for block_name, choice in zip(costs.block_names, sharding, strict=True):
        built = costs.problem(block_name, setting)
        assert built is not None, "a decision has a sharding for every block"
        for operator, options, index in zip(costs.model.block(block_name).operators, built.strategies, choice, strict=True):
            found.append(OperatorSharding(block_name, operator.name, options[index].name))
    return tuple(found)


def _mfu(request: TrainingRequest, devices: Sequence[tuple[Device, int]], step_time_s: float) -> float:
    """Model FLOPs utilisation: three times the forward FLOPs (attention counted as its kernel runs it) over the peak."""
    workload = request.workload
    peak = sum(number * device.peak(workload.precision) for device, number in devices)
    return step_flops(request) / (step_time_s * peak)


# Notes of a plan on the documents that its sequences are packed of.


def document_notes(request: TrainingRequest, *, step_s: float) -> tuple[str, ...]:
    """Return what is assumed of documents, if there are any; of padding, how much a step of ``step_s`` spends on it."""
    workload = request.workload
    if workload.lengths is not None and workload.lengths.fill is Fill.PADDED:
        useful = workload.lengths.useful_tokens(workload.seq_len)
        said = (
            f"sequences hold {useful:,.0f} tokens of documents on average, and {1 - useful / workload.seq_len:.1%} padding, "
            "which is computed like them and counted in tokens/s: "
        )
        of_documents = TimedFigure(workload.global_batch * useful / step_s, ",.0f", OverTime.SHRINKS)
        return (TimedWords(said, of_documents, " tokens/s are of documents"),)
    packed = workload.documents
    if packed is None:
        return ()
    operators = (operator for run in request.model.chain for operator in request.model.block(run.block).operators)
    sizes = {**request.model.dims, BATCH: 1, SEQ: workload.seq_len}
    kept = [packed.mean_pairs(each) / attention_pairs(each, sizes) for each in operators if packed.masks(each)]
    if not kept:
        return ("no attention of the model is masked by documents: its kernels compute all pairs",)
    return (
        f"sequences are packed of documents of {packed.lengths.mean_tokens:,.0f} tokens on average, {packed.documents:,.1f} "
        f"whole or cut in each; their masks leave {min(kept):.1%} of the query-key pairs, on average over sequences",
    )


# Plans that lost: the runners-up with the reason why.

MAX_RUNNERS_UP = 4

_PART_NAMES = {
    "compute_s": "more compute on the slowest stage",
    "recompute_s": "more recomputation",
    "tp_comm_s": "more tensor-parallel communication",
    "cp_comm_s": "more context-parallel communication",
    "pp_comm_s": "more pipeline sends",
    "dp_comm_s": "more exposed gradient and weight communication",
    "bubble_s": "a larger pipeline bubble",
    "optimizer_s": "a longer optimizer step",
    "offload_s": "more exposed moves of activations to the host and back",
}


def runners_up(costs: TrainingCosts, best: Solved, result: SearchResult) -> tuple[RunnerUp, ...]:
    """The best plan of each other mesh, fastest first, after the meshes that looked faster and did not fit."""
    seen = {best.decision.candidate.mesh}
    fit_somehow = {solved.decision.candidate.mesh for solved in (best, *result.alternatives, *result.near)}
    refused: list[RunnerUp] = []
    for mesh, (candidate, shortfall) in result.refused.items():
        if mesh not in fit_somehow and len(refused) < MAX_RUNNERS_UP // 2:
            refused.append(
                RunnerUp(
                    summary(candidate),
                    None,
                    f"does not fit: stage {shortfall.stage} needs {shortfall.need_bytes / GIB:.1f} GiB where "
                    f"{shortfall.have_bytes / GIB:.1f} GiB are left beside the framework",
                )
            )
    slower: list[RunnerUp] = []
    for solved in sorted((*result.alternatives, *result.near), key=lambda s: (s.value, s.sort_key)):
        if solved.decision.candidate.mesh not in seen and len(slower) < MAX_RUNNERS_UP - len(refused):
            seen.add(solved.decision.candidate.mesh)
            slower.append(RunnerUp(summary(solved.decision.candidate), solved.value, _why_worse(costs, best, solved)))
    return (*refused, *slower)


def _why_worse(costs: TrainingCosts, best: Solved, other: Solved) -> str:
    """The part of the step that grew most, in words and numbers."""
    winner, loser = (asdict(_breakdown(costs, solved)) for solved in (best, other))
    extra_s = other.cost.step_time_s - best.cost.step_time_s
    part = max(_PART_NAMES, key=lambda name: loser[name] - winner[name])
    slower = f"{abs(extra_s) / best.cost.step_time_s:.1%} {'slower' if extra_s >= 0 else 'faster'}"
    if best.value != best.cost.step_time_s:
        slower = f"{other.value / best.value - 1:.1%} more energy and {slower}"
    if loser[part] - winner[part] <= 0:
        return f"{slower}: as fast, and later in the canonical order"
    was_s, is_s = step_seconds(winner[part], ".3g"), step_seconds(loser[part], ".3g")
    return TimedWords(f"{slower}: {_PART_NAMES[part]} (", was_s, " s -> ", is_s, " s)")


def _breakdown(costs: TrainingCosts, solved: Solved) -> TimeBreakdown:
    return time_breakdown(solved.decision, solved.cost, decision_tables(solved.decision, costs))


# The certificate of searches of wider spaces and of the plan that they began with, and the name of the one that lost.

UNFINISHED_REMEDIES = ("raise search.time_limit_s or search.max_candidates", "restrict the space in 'search'")
"""The remedies for a search that was stopped before it decided."""


def widened(given: Certificate, objective_s: float, bound_s: float, *, by: str) -> Certificate:
    """Certificate of a step time and of a bound, no more than it, over the given space and what it was widened ``by``."""
    gap = (objective_s - bound_s) / objective_s
    proven = gap <= RELATIVE_TIE
    return replace(
        given,
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        objective=objective_s,
        bound=objective_s if proven else bound_s,
        gap=0.0 if proven else gap,
        space=f"{given.space}; or {by}",
    )


def bounded_by(plan: Plan, floor_s: float) -> Plan:
    """The plan under a bound that holds for every plan, where its certificate has proven less."""
    given = plan.certificate
    if given.status is not Status.FEASIBLE or given.objective is None or given.bound is None or given.bound >= floor_s:
        return plan
    bound_s = min(floor_s, given.objective)
    return replace(plan, certificate=replace(given, bound=bound_s, gap=(given.objective - bound_s) / given.objective))


def still_open(given: Plan) -> Plan:
    """The answer where the given space holds no plan and the search of the wider one was stopped: undecided."""
    reason = unfinished_search(
        given.search.candidates, looked_for="a plan that fits and meets the SLO", remedies=UNFINISHED_REMEDIES
    )
    certificate = replace(given.certificate, status=status_without_plan(reason))
    return replace(given, certificate=certificate, reason=reason)


def instead_of(given: Plan, best: Plan, name: str) -> Plan:
    """The best plan with the given one, which is called so, as its first runner-up, and as its equal where noise allows."""
    given_s = given.certificate.objective
    why = "nothing fits or meets the SLO" if given_s is None else TimedWords("takes ", step_seconds(given_s), " s a step")
    losers = (RunnerUp(name, given_s, why), *given.runners_up)
    return replace(best, runners_up=losers[:MAX_RUNNERS_UP], equals=equal_form(given, best, name))
