"""The page that ``meshwright plan`` prints: the answer first, then why, then what to do next."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from rich import box
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshwright.app.base.console import PAGE_WIDTH, indented, plain, whole_line
from meshwright.app.base.figures import (
    BarRow,
    amount,
    axes,
    bar,
    counted,
    gib,
    memory_kinds,
    number_range,
    parameters_in_words,
    parts_table,
    percent,
    ranks_of,
    seconds,
    significant,
    speed_in_words,
    spread,
)
from meshwright.app.base.plan_words import certificate_in_words, equals_in_words, operators_in_words, rates_of, run_in_words
from meshwright.costmodels.calibration.calibration import calibration_key
from meshwright.costmodels.calibration.from_runs import is_run_key
from meshwright.costmodels.queueing.router import Router
from meshwright.solver.answer.arrangement import unusual_choices
from meshwright.solver.answer.cluster_time import confident_factor, law_of
from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.layouts import (
    ByGroup,
    GroupReplicas,
    Kinds,
    OfWorkers,
    Pipelines,
    Pools,
    PrefillWorkers,
    PromptPhase,
    Replicas,
    Stagewise,
    Switched,
    Uniform,
    WorkerKind,
    Workers,
)
from meshwright.solver.answer.pipeline_plan import placement_of
from meshwright.solver.answer.plan import FrontierPoint, Interactivity, Plan
from meshwright.solver.answer.predicted import USD_PER_MILLION_TOKENS, Predicted, Reason, TimeBreakdown
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.choices import FrontierScope, Objective, TpOverlap
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
from meshwright.solver.training.report.bands import unlike_measured


@dataclass(frozen=True, slots=True)
class NextStep:
    """The end of the page: where the plan is, and a command that goes on from here; and for each suggestion the command that
    asks for it, in parts that stay whole where lines end."""

    place: str
    command: str | None
    suggested: Sequence[Sequence[str]] = ()


def print_plan(
    console: Console,
    plan: Plan,
    request: PlanRequest,
    next_step: NextStep,
    *,
    full: bool,
    at_asked: Predicted | None = None,
) -> None:
    """Print the page of a plan, feasible or not: all of it, or what fits a screen and the words that show the rest.

    ``at_asked`` are its figures at the rate that was asked, where its own are at the highest.
    """
    groups = " + ".join(f"{group.nodes} x {group.node.name}" for group in request.cluster.groups)
    asked = question(plan, request, on=f"{groups} ({counted(request.cluster.n_devices, 'device')})")
    console.print(plain(asked, style="bold"))
    parts = (
        _feasible(plan, request, next_step, full=full, at_asked=at_asked)
        if plan.feasible
        else _infeasible(plan, request, next_step)
    )
    rest = [] if full or not plan.feasible else [left_out(plan)]
    for part in (*parts, *(_notes(plan) if full or not plan.feasible else []), *rest, ending(next_step)):
        console.print()
        console.print(part)


def question(plan: Plan, request: PlanRequest, *, on: str) -> str:
    """Return the model, the devices that it is planned on and the work, as the first line of a page says them."""
    model = f"{plan.model or request.model.name} ({parameters_in_words(request.model)})"
    return f"{model} on {on}: {_PAGES[request.workload.kind].work(request.workload)}"


def _training_work(work: TrainingWorkload) -> str:
    asked = f"training in {work.precision}, {work.global_batch:,} sequences of {work.seq_len:,} tokens a step"
    if work.mtp_layers:
        asked += f", {counted(work.mtp_layers, 'layer')} beside the head for more tokens"
    if work.adapter is not None:
        asked += f", {work.adapter.in_words}"
    if work.lengths is not None:
        asked += f", {work.lengths.fill.value} with documents of {work.lengths.mean_tokens:,.0f} tokens on average"
    return asked


def _serving_work(work: ServingWorkload) -> str:
    return f"serving in {_formats(work)}, {_arrivals(work.arrivals)}{_DEALT[work.router]}"


def _formats(work: ServingWorkload) -> str:
    """The precision, with the format of the weights where it is not the one that the precision names."""
    stored = work.weight_format.value
    return work.precision.value if stored == work.precision.value else f"{work.precision.value} ({stored} weights)"


_DEALT = {
    Router.RANDOM: "",
    Router.ROUND_ROBIN: ", dealt out round robin",
    Router.LEAST_LOADED: ", each to the replica with the fewest",
}


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


def _money(plan: Plan) -> str:
    """Return what a plan costs at the prices of its request, in the unit that it was chosen by and for tokens."""
    assert plan.predicted is not None and plan.certificate.objective is not None
    words = f"Costs {plan.certificate.objective:.3g} {plan.certificate.unit}"
    of_tokens = plan.predicted.cost_per_million_tokens
    return words if of_tokens is None else f"{words}, {of_tokens:.3g} USD per million tokens"


def _feasible(
    plan: Plan, request: PlanRequest, next_step: NextStep, *, full: bool, at_asked: Predicted | None = None
) -> list[RenderableType]:
    assert plan.predicted is not None
    parts: list[RenderableType] = [
        Group(
            *_speeds(plan, request, at_asked),
            *([plain(_money(plan))] if request.objective is Objective.COST else []),
            *([] if (run := run_in_words(plan, request)) is None else [plain(run)]),
            plain(certificate_in_words(plan, request)),
            *_PAGES[request.workload.kind].idle(plan, request),
            *([plain(f"Space: {plan.certificate.space}", style="dim")] if full else []),
            *([plain(operators_in_words(plan.certificate), style="dim")] if full and plan.certificate.operator_solvers else []),
        ),
        *_layout_parts(plan),
        *_choices(plan),
        *memory_at_risk(plan.predicted),
        *_PAGES[request.workload.kind].at_risk(plan.predicted, request),
    ]
    breakdown = placement_of(plan).breakdown
    if breakdown is not None:
        parts.append(_time(breakdown))
    return [*parts, *beside_the_plan(plan, request, next_step, full=full)]


def _idle(plan: Plan, request: TrainingRequest) -> list[Text]:
    """The devices that a plan leaves idle, where it does: those after the ones that it uses."""
    of_all = request.cluster.n_devices
    if plan.devices == of_all or request.search.idle_groups:
        return []
    per_node = request.cluster.groups[0].node.devices_per_node
    unit, size = ("devices", 1) if plan.devices % per_node else ("nodes", per_node)
    return [plain(f"Uses the first {plan.devices // size:,} of {of_all // size:,} {unit}; the others are idle.")]


def _speeds(plan: Plan, request: PlanRequest, at_asked: Predicted | None) -> list[Text]:
    """What was asked first: figures at the rate that was named, then at the highest, which the rest of the page is about."""
    assert plan.predicted is not None
    devices = plan.devices if _PAGES[request.workload.kind].says_devices else None
    is_feasible, rates = plain("Feasible: ", style="bold green"), rates_of(plan, request)
    whole = speed_in_words(plan.predicted, devices=devices)
    if at_asked is None or rates is None:
        return [is_feasible + plain(whole, style="bold"), *([] if rates is None else [plain(str(rates))])]
    asked = f"{speed_in_words(at_asked, devices=devices)} at {significant(rates.asked)} requests/s"
    return [
        is_feasible + plain(asked, style="bold"),
        plain(f"At most {whole} at {significant(rates.most)} requests/s"),
        plain(str(rates)),
    ]


def _latencies_at_risk(predicted: Predicted, request: ServingRequest) -> list[RenderableType]:
    """The targets of a plan, that at most risk first: median, what is promised, and the chance to miss it."""
    slo = request.slo
    told = (
        ("P95 TTFT", slo.p95_ttft_ms, predicted.ttft_p95_s, predicted.ttft_promised_s, predicted.chance_ttft_missed),
        ("P95 TPOT", slo.p95_tpot_ms, predicted.tpot_p95_s, predicted.tpot_promised_s, predicted.chance_tpot_missed),
    )
    lines = []
    for name, target_ms, median_s, promised_s, chance in told:
        if target_ms is None or median_s is None or promised_s is None or chance is None:
            continue
        text = (
            f"{name}: {seconds(median_s)} at the median, {seconds(promised_s)} promised with confidence {slo.confidence:g}, "
            f"{seconds(target_ms / 1e3)} allowed; missed in {percent(chance)} of cases"
        )
        lines.append((-chance, name, indented(plain(text), 2)))
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


def _infeasible(plan: Plan, request: PlanRequest, next_step: NextStep) -> list[RenderableType]:
    reason = plan.reason
    assert reason is not None
    if not plan.is_decided:
        return [
            plain("Not decided: the search was stopped", style="bold yellow"),
            plain(reason.message),
            *_remedies(plan, reason, next_step),
        ]
    where = "" if reason.stage is None else f" in stage {reason.stage}"
    # A field of the request keeps its name.
    name = reason.constraint if "." in reason.constraint else reason.constraint.replace("_", " ")
    lines: list[RenderableType] = [
        plain("Infeasible: ", style="bold red") + plain(f"{name} is the tightest constraint{where}", style="bold"),
        plain(f"  {need_and_have(reason, request)}"),
    ]
    if reason.have > 0:
        share = reason.need / reason.have
        lines.append(
            plain("  ") + bar(share) + plain(f" {percent(share)} of what {'is allowed' if _is_target(reason) else 'there is'}")
        )
    lines.append(plain(certificate_in_words(plan, request)))
    return [Group(*lines), plain(reason.message), *_remedies(plan, reason, next_step)]


def need_and_have(reason: Reason, request: PlanRequest) -> str:
    """Return what the tightest constraint needs and what there is, in its unit; of a time what it takes and what is allowed, of
    a cost the same in money, of the whole run where its tokens are known."""
    if reason.unit == USD_PER_MILLION_TOKENS:
        run_tokens = request.workload.run_tokens
        runs, unit = (1.0, f" {reason.unit}") if run_tokens is None else (run_tokens / 1e6, " USD")
        return f"costs {significant(reason.need * runs)}{unit}, allowed {significant(reason.have * runs)}"
    need, have = amount(reason.need, reason.unit), amount(reason.have, reason.unit)
    return f"takes {need}, allowed {have}" if _is_target(reason) else f"need {need}, have {have}"


def _is_target(reason: Reason) -> bool:
    """Return True if the constraint is a limit of what is taken, not of what there is."""
    return reason.unit in ("s", "ms", "x", USD_PER_MILLION_TOKENS)


def _remedies(plan: Plan, reason: Reason, next_step: NextStep) -> list[RenderableType]:
    solved = _suggested(plan, next_step)
    others = [indented(plain(f"- {remedy}"), 2) for remedy in reason.remedies if remedy not in solved]
    lines = [*others, *(line for lines in solved.values() for line in lines)]
    return [Group(plain("What would help", style="bold"), *lines)] if lines else []


def _suggested(plan: Plan, next_step: NextStep) -> dict[str, list[RenderableType]]:
    """The lines of each suggestion by its words, the command that asks for it under them."""
    commands = next_step.suggested or [()] * len(plan.suggestions)
    return {
        each.in_words: [indented(plain(f"- {each.in_words}"), 2), *command_lines(command)]
        for each, command in zip(plan.suggestions, commands, strict=True)
    }


def command_lines(parts: Sequence[str]) -> list[Text]:
    """Return a command as lines to copy into a shell, as wide as a page where its parts allow it: a part stays whole, and a
    backslash ends all lines but the last."""
    lines = list[str]()
    for part in parts:
        if lines and len(lines[-1]) + len(f" {part} \\") <= PAGE_WIDTH:
            lines[-1] += f" {part}"
        else:
            lines.append(f"{'      ' if lines else '    '}{part}")
    ended = [*(f"{line} \\" for line in lines[:-1]), *lines[-1:]]
    return [whole_line(line, style="cyan") for line in ended]


def _notes(plan: Plan) -> list[RenderableType]:
    return [Group(*(plain(f"Note: {note}", style="dim") for note in plan.notes))] if plan.notes else []


def ending(next_step: NextStep) -> Group:
    """Return the last lines of a page."""
    lines = [plain(next_step.place, style="dim")]
    if next_step.command is not None:
        lines.append(next_line(next_step.command))
    return Group(*lines)


def next_line(command: str) -> Text:
    """Return the line that names the command to go on with."""
    return plain("Next: ", style="bold") + plain(command, style="bold cyan")


# The stages of a plan: a table of what they hold and how, and bars of what they need; equal neighbours are one line.

NumberedStage = tuple[int, Stage]


def stage_table(stages: Sequence[Stage], *, step: str, trains: bool) -> Table:
    """One line a run of equal stages: layers, ranks, time of a ``step``; axes where stages differ in them; recompute and ZeRO
    where it ``trains``."""
    differ = len({stage.axes for stage in stages}) > 1
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for name in ("stage", "layers", "ranks", *(["axes"] if differ else []), *(["recompute", "ZeRO"] if trains else [])):
        table.add_column(name, overflow="fold")
    table.add_column(step, justify="right")
    for run in folded(stages):
        alike = [stage for _, stage in run]
        first = alike[0]
        table.add_row(
            number_range(number for number, _ in run),
            _layers(first) + (" each" if len(run) > 1 else ""),
            ranks_of(devices for stage in alike for devices in stage.devices),
            *([axes(first.axes)] if differ else []),
            *([recompute(first), str(first.zero_stage)] if trains else []),
            spread(seconds(time_s) for time_s in sorted(stage.time_s for stage in alike)),
        )
    return table


def memory_bars(stages: Sequence[Stage]) -> Group:
    """One bar for each run of equal stages, its fullest device against what may be used, and what fills the fullest of all."""
    table = Table.grid(padding=(0, 1))
    for run in folded(stages):
        totals = [stage.memory.total_bytes for _, stage in run]
        fullest = max((stage for _, stage in run), key=_fullness)
        amount = spread(gib(total) for total in sorted({min(totals), max(totals)}))
        numbers = number_range(number for number, _ in run)
        table.add_row(f"  stage {numbers}", bar(_fullness(fullest)), amount, percent(_fullness(fullest)))
    fullest = max(stages, key=_fullness)
    title = f"Memory of the fullest device, of {gib(fullest.memory.capacity_bytes)} that may be used"
    kinds = plain(f"at most: {_memory_kinds(fullest)}{_beside(stages)}", style="dim")
    return Group(plain(title, style="bold"), table, Padding(kinds, (0, 0, 0, 2), expand=False))


def _beside(stages: Sequence[Stage]) -> str:
    """What a device's share of its host's memory and of its node's drives holds."""
    host, drives = (max(amounts) for amounts in zip(*((s.memory.host_bytes, s.memory.nvme_bytes) for s in stages), strict=True))
    said = [f"{gib(host)} of host memory a device"] if host else []
    said += [f"{gib(drives)} on drives a device"] if drives else []
    return "".join(f"; {each}" for each in said)


def folded(stages: Sequence[Stage]) -> list[list[NumberedStage]]:
    """Stages with their numbers, grouped where neighbours hold the same layers on as many devices in the same way."""
    return [list(run) for _, run in groupby(enumerate(stages), key=lambda numbered: _likeness(numbered[1]))]


def recompute(stage: Stage) -> str:
    """Return the recompute mode of a stage, and of how many layers where not of all."""
    return stage.recompute.value + stage.of_layers


def _likeness(stage: Stage) -> tuple[object, ...]:
    n_devices = sum(part.count for part in stage.devices)
    return (tuple(_counts(stage).items()), n_devices, stage.axes, recompute(stage), stage.zero_stage)


def _layers(stage: Stage) -> str:
    return " + ".join(block if count == 1 else f"{count} x {block}" for block, count in _counts(stage).items())


def _counts(stage: Stage) -> dict[str, int]:
    counts: dict[str, int] = {}
    for span in stage.blocks:
        counts[span.block] = counts.get(span.block, 0) + span.count
    return counts


def _fullness(stage: Stage) -> float:
    return stage.memory.total_bytes / stage.memory.capacity_bytes


def _memory_kinds(stage: Stage) -> str:
    return ", ".join(f"{name} {gib(amount)}" for name, amount in memory_kinds(stage.memory) if amount > 0)


def memory_at_risk(predicted: Predicted) -> list[RenderableType]:
    """The quantiles of a training plan's memory; nothing of serving plans, and of plans of versions that told none."""
    if predicted.peak_memory_p95_bytes is None or predicted.chance_out_of_memory is None:
        return []
    median, p95 = gib(predicted.peak_memory_bytes), gib(predicted.peak_memory_p95_bytes)
    chance = percent(predicted.chance_out_of_memory)
    text = f"{median} at the median, more than {p95} in one run of 20, out of memory in {chance} of runs"
    return [plain("Memory at risk: ", style="bold") + plain(text)]


# The layout of a serving plan on its page: workers, stages and memory, form by form.


def serving_parts(layout: OfWorkers) -> list[RenderableType]:
    """Stages and memory of all workers, those that compute prompts first; in the words of the form, where it has some."""
    match layout:
        case Replicas():
            return _replicas(layout, "Layout")
        case Pools():
            return [*_prefill_pool(layout.prefill), *_replicas(layout.decode, "Decode workers")]
        case Switched():
            return [*_prompt_phase(layout.prompts), *_replicas(layout.answers, "Layout of answers")]
        case Kinds():
            return [part for kind in layout.kinds for part in _kind(kind)]
        case _:
            return [part for workers in layout.all_workers for part in _workers(workers)]


def _workers(workers: Workers) -> list[RenderableType]:
    """Workers of a form that has no words of its own."""
    said = (
        f"Workers: {axes(workers.axes)}; {counted(workers.count, 'worker')}; at most "
        f"{counted(workers.max_num_seqs, 'sequence')} and {workers.max_num_batched_tokens:,} tokens a step"
    )
    return [Group(plain(said), stage_table(workers.stages, step="step", trains=False)), memory_bars(workers.stages)]


def _replicas(replicas: Replicas, name: str) -> list[RenderableType]:
    table = stage_table(replicas.stages, step="decode step", trains=False)
    return [Group(plain(f"{name}: {_layout_in_words(replicas)}"), table), memory_bars(replicas.stages)]


def _layout_in_words(replicas: Replicas) -> str:
    load = replicas.load
    return "; ".join(
        (
            axes(replicas.axes),
            f"{counted(load.replicas, 'replica')}, {percent(load.utilisation)} busy",
            f"at most {counted(load.max_num_seqs, 'sequence')} and {load.max_num_batched_tokens:,} tokens a step",
        )
    )


def _prefill_pool(pool: PrefillWorkers) -> list[RenderableType]:
    said = (
        f"Prefill workers: {axes(pool.axes)}; {counted(pool.workers, 'worker')}, {percent(pool.utilisation)} busy; at most "
        f"{pool.max_num_batched_tokens:,} tokens a step; keys and values reach a decode worker in {seconds(pool.transfer_s)}"
    )
    return [Group(plain(said), stage_table(pool.stages, step="prefill step", trains=False)), memory_bars(pool.stages)]


def _prompt_phase(prompts: PromptPhase) -> list[RenderableType]:
    """The layout of prompts of workers that switch, and what a change takes."""
    said = (
        f"Layout of prompts, on the same devices: {axes(prompts.axes)}; at most {prompts.max_num_batched_tokens:,} tokens a "
        f"step; {percent(prompts.prefill_share)} of the time, from one phase of prompts to the next {seconds(prompts.cycle_s)}"
    )
    change = (
        f"Changes: {seconds(prompts.to_decode_s)} to the layout of answers ({amount(prompts.to_decode_bytes, 'bytes')} a "
        f"device), {seconds(prompts.to_prefill_s)} back, {percent(prompts.switching_share)} of the time; host memory has room "
        f"for {prompts.buffer_tokens:,} tokens of a worker ({amount(prompts.host_bytes, 'bytes')} of a node with the weights)"
    )
    table = stage_table(prompts.stages, step="prefill step", trains=False)
    return [Group(plain(said), plain(change), table), memory_bars(prompts.stages)]


def _kind(kind: WorkerKind) -> list[RenderableType]:
    """Share, figures, layout and memory of one kind of workers."""
    taken = (
        f"{percent(kind.share)} of arrivals, {significant(kind.requests_per_s)} requests/s: "
        f"{speed_in_words(kind.predicted, devices=kind.devices)}"
    )
    replicas = kind.replicas
    table, layout = (
        stage_table(replicas.stages, step="decode step", trains=False),
        plain(f"Layout: {_layout_in_words(replicas)}"),
    )
    return [Group(plain(taken, style="bold"), layout, table), memory_bars(replicas.stages)]


# Parts of a plan's page beside the plan: what lost, what is equal, what would be better, the frontier, calibrations.

SHOWN_RUNNERS_UP = 3


def beside_the_plan(plan: Plan, request: PlanRequest, next_step: NextStep, *, full: bool) -> list[RenderableType]:
    """Return all of it, or what fits a screen and what was asked for."""
    better, frontier = _improvements(plan, next_step), [*frontier_parts(plan), *interactivity_parts(plan)]
    if full:
        return [
            _comparison(plan, SHOWN_RUNNERS_UP),
            *_equals(plan),
            *better,
            *frontier,
            _calibration(plan),
            *_corrected(plan),
            *_PAGES[request.workload.kind].unlike(plan, request),
        ]
    swept = request.search.frontier is FrontierScope.SWEPT
    rests_on = (_calibration_in_short(plan), *_corrected(plan), *_PAGES[request.workload.kind].unlike(plan, request))
    return [_comparison(plan, 1), *better, *(frontier if swept else []), *rests_on]


def _comparison(plan: Plan, most: int) -> RenderableType:
    if not plan.runners_up:
        return plain("Nothing came close: the search kept no runner-up.")
    lines: list[RenderableType] = [plain("Why not another plan", style="bold")]
    for other in plan.runners_up[:most]:
        lines += [indented(plain(other.summary), 2), indented(plain(other.why_not, style="dim"), 4)]
    return Group(*lines)


def _equals(plan: Plan) -> list[RenderableType]:
    """The plans that ranking can't tell from this one; nothing where there is none."""
    if plan.equals is None or plan.equals.count < 2:
        return []
    lines: list[RenderableType] = [plain(equals_in_words(plan.equals), style="bold")]
    if plan.equals.plainest is not None:
        plainest = plan.equals.plainest
        lines += [plain("The plainest of them:"), indented(plain(plainest.summary), 2)]
        lines.append(indented(plain(plainest.differs, style="dim"), 4))
    if plan.equals.also_try:
        lines.append(plain("Also try:"))
    for other in plan.equals.also_try:
        lines += [indented(plain(other.summary), 2), indented(plain(other.differs, style="dim"), 4)]
    return [Group(*lines)]


def _improvements(plan: Plan, next_step: NextStep) -> list[RenderableType]:
    """The changes of the request that make the plan better; nothing where none was asked for, or found."""
    if not plan.suggestions:
        return []
    lines = [line for lines in _suggested(plan, next_step).values() for line in lines]
    return [Group(plain("What would make it better (solved)", style="bold"), *lines)]


def _calibration_in_short(plan: Plan) -> Text:
    """The calibration that errs most of those that the plan rests on."""
    if not plan.calibration:
        return plain("")
    worst = max(plan.calibration, key=lambda used: used.median_error)
    several = f"{len(plan.calibration)} calibrations; the least certain, " if len(plan.calibration) > 1 else ""
    return plain(
        f"Rests on {several}{worst.id}, errs by {percent(worst.median_error)} median, {percent(worst.p95_error)} P95, on "
        "measurements that it was not fitted to"
    )


def _corrected(plan: Plan) -> list[Text]:
    """The runs that corrected a plan's figures, and what they changed; nothing where there were none."""
    used = next((each for each in plan.calibration if is_run_key(calibration_key(each.id))), None)
    return [] if used is None else [plain(f"Corrected by {used.id}: {used.basis}")]


def _unlike(plan: Plan, request: TrainingRequest) -> list[Text]:
    """What a plan has that no measured step had; nothing where runs were like it."""
    axes, breakdown = record_of(plan).axes, placement_of(plan).breakdown
    if axes is None or breakdown is None:
        return []
    said = ", ".join(unlike_measured(request, axes, breakdown))
    return [plain(f"No run was measured with {said}: the band may not hold", style="yellow")] if said else []


def left_out(plan: Plan) -> Text:
    """The line that says what ``--full`` adds."""
    equal = plan.equals.count - 1 if plan.equals is not None else 0
    lost = len(plan.runners_up) - 1
    more = [
        "the space searched",
        *([counted(lost, "plan more that lost", "plans more that lost")] if lost > 0 else []),
        *([f"{counted(equal, 'plan')} that ranking can't tell from this one"] if equal > 0 else []),
        *(["the frontier"] if len(plan.frontier) > 1 else []),
        *([counted(len(plan.notes), "note")] if plan.notes else []),
        "all calibrations",
    ]
    return plain(f"--full shows {', '.join(more[:-1])} and {more[-1]}", style="dim")


def _calibration(plan: Plan) -> Group:
    lines: list[RenderableType] = [plain("Calibration: error on measurements that it was not fitted to", style="bold")]
    for used in plan.calibration:
        lines.append(plain(f"  {used.id}: {percent(used.median_error)} median, {percent(used.p95_error)} P95"))
        lines.append(indented(plain(used.basis, style="dim"), 4))
    stats = plan.search
    lines.append(plain(f"Search: {stats.candidates:,} candidates in {seconds(stats.seconds)} of CPU time", style="dim"))
    return Group(*lines)


# Throughput of a device against tokens per second of a user, as a chart in characters and a table below it.

WIDTH, HEIGHT = 56, 12
"""Columns and lines of the chart's inside."""

POINT, CHOSEN = "●", "◆"

CAVEAT = (
    "Replicas that prefill and decode, their batches always full: means of a steady state without a queue. They are no "
    "promises of percentiles, and the SLO is not asked of them."
)


def interactivity_parts(plan: Plan) -> list[RenderableType]:
    """The chart with its title, what it is of, and a table of its points; nothing where the plan has none."""
    drawn = plan.interactivity
    if drawn is None:
        return []
    user, device = significant(drawn.plan_tokens_per_s_per_user), significant(drawn.plan_tokens_per_s_per_device)
    own = f"{CHOSEN} this plan at its load: {device} tokens/s a device, {user} tokens/s to a user at its mean batch"
    return [
        Group(
            plain("Output tokens/s of a device (up) against tokens/s of a user (right)", style="bold"),
            *_chart(drawn),
            plain(own),
            plain(f"{POINT} {CAVEAT}", style="dim"),
        ),
        _table(drawn),
    ]


def _chart(drawn: Interactivity) -> list[Text]:
    """Lines of the chart, both axes from 0; the plan's mark is never hidden."""
    at_user = [*(point.tokens_per_s_per_user for point in drawn.points), drawn.plan_tokens_per_s_per_user]
    at_device = [*(point.tokens_per_s_per_device for point in drawn.points), drawn.plan_tokens_per_s_per_device]
    widest, highest = max(at_user), max(at_device)
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]
    for index, (user, device) in enumerate(zip(at_user, at_device, strict=True)):
        row, column = round((1.0 - device / highest) * (HEIGHT - 1)), round(user / widest * (WIDTH - 1))
        cells[row][column] = CHOSEN if index == len(drawn.points) else POINT
    labels = {0: significant(highest), HEIGHT - 1: "0"}
    margin = max(len(label) for label in labels.values())
    lines = [plain(f"{labels.get(row, ''):>{margin}} │{''.join(line)}") for row, line in enumerate(cells)]
    right = significant(widest)
    return [*lines, plain(f"{'':>{margin}} └{'─' * WIDTH}"), plain(f"{'':>{margin}}  0{right:>{WIDTH - 1}}")]


def _table(drawn: Interactivity) -> RenderableType:
    shown = spread_points(drawn.points)
    several = len({point.group for point in drawn.points}) > 1
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("tokens/s/device", "tokens/s/user", "batch", "tokens a step"):
        table.add_column(column, justify="right")
    table.add_column("replica")
    for point in shown:
        table.add_row(
            significant(point.tokens_per_s_per_device),
            significant(point.tokens_per_s_per_user),
            f"{point.batch:,.0f}",
            f"{point.max_num_batched_tokens:,}",
            f"{point.group}: {point.summary}" if several else point.summary,
        )
    left = len(drawn.points) - len(shown)
    return Group(table, *([plain(f"{left} more in the plan document", style="dim")] if left else []))


# The frontier as a table: plans that no other beats in speed, memory left, devices, cost and energy at once.

MAX_ROWS = 8
"""Rows that the page shows; the document has all."""

_Point = TypeVar("_Point")


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of the points that not every frontier has."""

    title: str
    value: Callable[[FrontierPoint], float | None]
    text: Callable[[float], str]


COLUMNS = (
    Column("memory left", lambda point: point.memory_headroom_bytes, gib),
    Column("USD/M tokens", lambda point: point.cost_per_million_tokens, lambda cost: f"{cost:.3f}"),
    Column("kJ a step", lambda point: point.energy_per_step_j, lambda energy: significant(energy / 1e3)),
)

SPEED_WIDTH = 10
"""Columns of the bar that compares speeds."""


def frontier_parts(plan: Plan) -> list[RenderableType]:
    """The table with its title; nothing where the plan is the only one on it."""
    if len(plan.frontier) < 2:
        return []
    shown = spread_points(plan.frontier)
    columns = [column for column in COLUMNS if any(column.value(point) is not None for point in shown)]
    fastest = max(point.tokens_per_s for point in plan.frontier)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("", "devices", "tokens/s"):
        table.add_column(name, justify="right")
    table.add_column("")
    for column in columns:
        table.add_column(column.title, justify="right")
    for number, point in enumerate(shown, 1):
        table.add_row(
            str(number),
            f"{point.devices:,}",
            significant(point.tokens_per_s),
            bar(point.tokens_per_s / fastest, SPEED_WIDTH),
            *(_cell(column, point) for column in columns),
        )
    left = len(plan.frontier) - len(shown)
    title = plain("No plan beats these in all respects", style="bold")
    named = [Padding(plain(f"{number}: {point.summary}", style="dim"), (0, 0, 0, 2)) for number, point in enumerate(shown, 1)]
    return [Group(title, table, *named, *([plain(f"{left} more in the plan document", style="dim")] if left else []))]


def spread_points(points: tuple[_Point, ...]) -> list[_Point]:
    """Points evenly over the list, its ends among them."""
    if len(points) <= MAX_ROWS:
        return list(points)
    return [points[round(i * (len(points) - 1) / (MAX_ROWS - 1))] for i in range(MAX_ROWS)]


def _cell(column: Column, point: FrontierPoint) -> str:
    value = column.value(point)
    return "" if value is None else column.text(value)


# What differs by the kind of workload.


def _nothing(plan: Plan, request: PlanRequest) -> list[Text]:
    return []


@dataclass(frozen=True, slots=True)
class KindPage:
    """What the page says of a kind of workload.

    work          the work, in words
    says_devices  whether its speed is said with the devices that it takes
    idle          the devices that a plan leaves idle
    at_risk       the targets that a plan may miss
    unlike        what a plan has that no measured run had
    """

    work: Callable[[Any], str]
    says_devices: bool
    idle: Callable[[Plan, Any], list[Text]]
    at_risk: Callable[[Predicted, Any], list[RenderableType]]
    unlike: Callable[[Plan, Any], list[Text]]


_PAGES: Mapping[str, KindPage] = {
    "training": KindPage(_training_work, False, _idle, _step_at_risk, _unlike),
    "serving": KindPage(_serving_work, True, _nothing, _latencies_at_risk, _nothing),
}
"""Pages by the kind of workload."""
