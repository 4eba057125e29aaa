"""The page that ``meshwright plan`` prints: the answer first, then why, then what to do next."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType

from meshwright.app.cli.pages.beside_the_plan import beside_the_plan, left_out
from meshwright.app.cli.pages.serving_layout import serving_parts
from meshwright.app.cli.pages.stages import memory_at_risk, memory_bars, stage_table
from meshwright.app.text.bars import BarRow, bar, parts_table
from meshwright.app.text.certificate import certificate_in_words
from meshwright.app.text.console import indented, plain
from meshwright.app.text.figures import amount, axes, counted, parameters_in_words, percent, seconds, significant
from meshwright.app.text.load import load_in_words
from meshwright.app.text.speed import speed_in_words
from meshwright.solver.answer.chosen import unusual_choices
from meshwright.solver.answer.cluster_time import confident_factor, law_of
from meshwright.solver.answer.layouts import (
    ByGroup,
    GroupReplicas,
    OfWorkers,
    Pipelines,
    Stagewise,
    Uniform,
)
from meshwright.solver.answer.pipeline_plan import placement_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Predicted, TimeBreakdown
from meshwright.solver.answer.reason import Reason
from meshwright.solver.problem.choices import Launcher, TpOverlap
from meshwright.solver.problem.launchers.table import launcher_of
from meshwright.solver.problem.request import (
    Arrivals,
    PlanRequest,
    ServingRequest,
    ServingWorkload,
    TrainingRequest,
    TrainingWorkload,
)
from meshwright.solver.problem.serving_load import (
    ClosedArrivals,
    GammaArrivals,
    PoissonArrivals,
    ScheduleArrivals,
    TraceArrivals,
)


@dataclass(frozen=True, slots=True)
class NextStep:
    """The end of the page: where the plan is, and a command that goes on from here."""

    place: str
    command: str | None


def print_plan(console: Console, plan: Plan, request: PlanRequest, next_step: NextStep, *, full: bool) -> None:
    """Print the page of a plan, feasible or not: all of it, or what fits a screen and the words that show the rest."""
    console.print(plain(_question(plan, request), style="bold"))
    parts = _feasible(plan, request, full=full) if plan.feasible else _infeasible(plan, request)
    rest = [] if full or not plan.feasible else [left_out(plan)]
    for part in (*parts, *(_notes(plan) if full or not plan.feasible else []), *rest, _ending(next_step)):
        console.print()
        console.print(part)


def _question(plan: Plan, request: PlanRequest) -> str:
    groups = " + ".join(f"{group.nodes} x {group.node.name}" for group in request.cluster.groups)
    work = request.workload
    if isinstance(work, TrainingWorkload):
        asked = f"training in {work.precision}, {work.global_batch:,} sequences of {work.seq_len:,} tokens a step"
        if work.lengths is not None:
            asked += f", {work.lengths.fill.value} with documents of {work.lengths.mean_tokens:,.0f} tokens on average"
    else:
        asked = f"serving in {_formats(work)}, {_arrivals(work.arrivals)}"
    model = f"{plan.model or request.model.name} ({parameters_in_words(request.model)})"
    return f"{model} on {groups} ({counted(request.cluster.n_devices, 'device')}): {asked}"


def _formats(work: ServingWorkload) -> str:
    """The precision, with the format of the weights where it is not the one that the precision names."""
    stored = work.weight_format.value
    return work.precision.value if stored == work.precision.value else f"{work.precision.value} ({stored} weights)"


def _arrivals(arrivals: Arrivals) -> str:
    match arrivals:
        case PoissonArrivals():
            return f"{arrivals.requests_per_s:g} requests/s"
        case GammaArrivals():
            return f"{arrivals.requests_per_s:g} requests/s, cv {arrivals.cv:g}"
        case ScheduleArrivals():
            most = f"{arrivals.requests_per_s:g} requests/s in the busiest"
            return f"a schedule of {counted(len(arrivals.intervals), 'interval')}, {most}"
        case TraceArrivals():
            return f"a trace of {counted(len(arrivals.times_s), 'request')}, {significant(arrivals.requests_per_s)}/s"
        case ClosedArrivals():
            each = arrivals.requests_per_client
            run = "" if each is None else f", all begun at once, {counted(each, 'request')} each"
            return counted(arrivals.concurrency, "client") + run


def _feasible(plan: Plan, request: PlanRequest, *, full: bool) -> list[RenderableType]:
    assert plan.predicted is not None
    predicted = plan.predicted
    headline = plain("Feasible: ", style="bold green") + plain(
        speed_in_words(predicted, devices=plan.devices if isinstance(request, ServingRequest) else None), style="bold"
    )
    load = load_in_words(plan, request)
    parts: list[RenderableType] = [
        Group(
            headline,
            *([] if load is None else [plain(load)]),
            plain(certificate_in_words(plan, request)),
            *([plain(f"Space: {plan.certificate.space}", style="dim")] if full else []),
        ),
        *_layout_parts(plan),
        *_choices(plan),
        *memory_at_risk(plan.predicted),
        *_targets_at_risk(plan.predicted, request),
    ]
    breakdown = placement_of(plan).breakdown
    if breakdown is not None:
        parts.append(_time(breakdown))
    return [*parts, *beside_the_plan(plan, request, full=full)]


def _targets_at_risk(predicted: Predicted, request: PlanRequest) -> list[RenderableType]:
    """The targets of a plan, that at most risk first: median, what is promised, and of serving the chance to miss it."""
    slo = request.slo
    if isinstance(request, TrainingRequest):
        return _step_at_risk(predicted, request)
    told = (
        ("P95 TTFT", slo.p95_ttft_ms, predicted.ttft_p95_s, predicted.ttft_promised_s, predicted.chance_ttft_missed),
        ("P95 TPOT", slo.p95_tpot_ms, predicted.tpot_p95_s, predicted.tpot_promised_s, predicted.chance_tpot_missed),
    )
    lines = []
    for name, target_ms, median_s, promised_s, chance in told:
        if target_ms is None or median_s is None or promised_s is None or chance is None:
            continue
        text = (
            f"  {name}: {seconds(median_s)} at the median, {seconds(promised_s)} promised with confidence {slo.confidence:g}, "
            f"{seconds(target_ms / 1e3)} allowed; missed in {percent(chance)} of cases"
        )
        lines.append((-chance, name, plain(text)))
    if not lines:
        return []
    return [Group(plain("Targets at risk", style="bold"), *(line for *_, line in sorted(lines, key=lambda each: each[:2])))]


def _step_at_risk(predicted: Predicted, request: TrainingRequest) -> list[RenderableType]:
    """The step time of a training plan against its targets."""
    allowed_s = request.longest_step_s
    if predicted.step_time_s is None or allowed_s == math.inf:
        return []
    law = law_of(request)
    promised_s = predicted.step_time_s * confident_factor(request) / (1.0 if law is None else law.scale)
    text = (
        f"{seconds(predicted.step_time_s)} a step at the median, {seconds(promised_s)} promised with confidence "
        f"{request.slo.confidence:g}, {seconds(allowed_s)} allowed"
    )
    return [plain("Target at risk: ", style="bold") + plain(text)]


def _layout_parts(plan: Plan) -> list[RenderableType]:
    """Stages and memory of the plan's workers, or of its pipelines, those of the first node group first."""
    match plan.layout:
        case Uniform() | Stagewise() as layout:
            return _pipelines("Layout", layout.pipelines)
        case ByGroup() as layout:
            return _by_group(layout)
        case OfWorkers() as layout:
            return serving_parts(layout)
        case _:
            return []


def _by_group(layout: ByGroup) -> list[RenderableType]:
    first, *others = layout.groups
    parts = [plain(f"First node group: {_taken(first)}"), *_pipelines("Layout", first.pipelines)]
    for beside in others:
        parts += _pipelines(f"{beside.group}: {_taken(beside)}; layout", beside.pipelines)
    return parts


def _taken(replicas: GroupReplicas) -> str:
    return f"{replicas.sequences} sequences in {seconds(replicas.step_time_s)}"


def _pipelines(name: str, pipelines: Pipelines) -> list[RenderableType]:
    """Layout, stages and memory of equal pipelines."""
    title = plain(f"{name}: {_in_words(pipelines)}")
    return [Group(title, stage_table(pipelines.stages, step="micro-batch", trains=True)), memory_bars(pipelines.stages)]


def _in_words(pipelines: Pipelines) -> str:
    parts = [axes(pipelines.axes)]
    if pipelines.axes.pp > 1:
        chunks = len(pipelines.stages[0].chunk_layers or ())
        parts.append(f"{pipelines.schedule} schedule" + (f", {chunks} parts a rank" if chunks > 1 else ""))
    if pipelines.token_slices:
        parts.append(f"token slices of {', '.join(str(each.tokens) for each in pipelines.token_slices)}")
    microbatch = pipelines.microbatch
    parts.append(f"{counted(microbatch.count, 'micro-batch', 'micro-batches')} of {microbatch.size}")
    if pipelines.sequence_parallel:
        parts.append("sequence parallel")
    if pipelines.tp_overlap is TpOverlap.CHUNKED:
        parts.append("chunked products")
    return "; ".join(parts)


def _choices(plan: Plan) -> list[RenderableType]:
    """Return the line of what was chosen beside that, by the words of the ledger."""
    said = [f"{word} {value}" for word, value in unusual_choices(plan.layout).items()]
    return [plain(f"Chosen besides: {'; '.join(said)}")] if said else []


def _time(breakdown: TimeBreakdown) -> Group:
    exposed = breakdown.tp_comm_s + breakdown.cp_comm_s + breakdown.pp_comm_s + breakdown.dp_comm_s + breakdown.ep_comm_s
    amounts = (
        ("compute", breakdown.compute_s),
        ("recompute", breakdown.recompute_s),
        ("exposed communication", exposed),
        ("bubble", breakdown.bubble_s),
        ("optimizer", breakdown.optimizer_s),
        *([("moves to the host", breakdown.offload_s)] if breakdown.offload_s else []),
    )
    whole = sum(amount for _, amount in amounts)
    parts = tuple(BarRow(name, amount, seconds(amount)) for name, amount in amounts)
    kinds = (
        ("tp", breakdown.tp_comm_s),
        ("cp", breakdown.cp_comm_s),
        ("pp", breakdown.pp_comm_s),
        ("dp", breakdown.dp_comm_s),
        ("ep", breakdown.ep_comm_s),
    )
    named = ", ".join(f"{name} {seconds(amount)}" for name, amount in kinds if amount > 0)
    lines: list[RenderableType] = [plain(f"Time of a step, {seconds(whole)}", style="bold"), parts_table(parts, whole)]
    if named:
        lines.append(indented(plain(f"communication by axis: {named}", style="dim"), 2))
    return Group(*lines)


def _infeasible(plan: Plan, request: PlanRequest) -> list[RenderableType]:
    reason = plan.reason
    assert reason is not None
    if not plan.is_decided:
        return [
            plain("Not decided: the search was stopped", style="bold yellow"),
            plain(reason.message),
            *_remedies(reason),
        ]
    where = "" if reason.stage is None else f" in stage {reason.stage}"
    name = reason.constraint.replace("_", " ")
    lines: list[RenderableType] = [
        plain("Infeasible: ", style="bold red") + plain(f"{name} is the tightest constraint{where}", style="bold"),
        plain(f"  need {amount(reason.need, reason.unit)}, have {amount(reason.have, reason.unit)}"),
    ]
    if reason.have > 0:
        share = reason.need / reason.have
        lines.append(plain("  ") + bar(share) + plain(f" {percent(share)} of what there is"))
    lines.append(plain(certificate_in_words(plan, request)))
    return [Group(*lines), plain(reason.message), *_remedies(reason)]


def _remedies(reason: Reason) -> list[RenderableType]:
    if not reason.remedies:
        return []
    remedies = [indented(plain(f"- {remedy}"), 2) for remedy in reason.remedies]
    return [Group(plain("What would help", style="bold"), *remedies)]


def _notes(plan: Plan) -> list[RenderableType]:
    return [Group(*(plain(f"Note: {note}", style="dim") for note in plan.notes))] if plan.notes else []


def _ending(next_step: NextStep) -> Group:
    lines = [plain(next_step.place, style="dim")]
    if next_step.command is not None:
        lines.append(plain("Next: ", style="bold") + plain(next_step.command, style="bold cyan"))
    return Group(*lines)


def default_launcher(request: PlanRequest) -> Launcher | None:
    """The launcher that a next command names; None for an engine that nothing here exports to."""
    return launcher_of(request.search.engine) if isinstance(request, ServingRequest) else request.search.launcher
