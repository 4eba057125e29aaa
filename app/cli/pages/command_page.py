"""The page that ``meshwright explain`` prints: the verdict first, then figures, what is better, and every flag.

Of a measured run it says why that is slow: figures side by side, causes, and what to check.
"""

from __future__ import annotations

import math
from dataclasses import fields

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshwright.app.base.console import plain
from meshwright.app.base.figures import axes, counted, percent, seconds, significant, speed_in_words
from meshwright.app.cli.pages.plan_page import memory_at_risk, memory_bars, serving_parts, stage_table
from meshwright.app.launching.parts.flag import GivenFlag, Standing
from meshwright.app.service.explaining.explanation import Better, Explanation, Verdict
from meshwright.app.service.explaining.measured import Metric
from meshwright.app.service.explaining.slow import Compared, MeasuredAnswer, NamedCause
from meshwright.solver.answer.layouts import OfWorkers, Replicas, Uniform
from meshwright.solver.answer.pipeline_plan import pipelines_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import TimeBreakdown

_HEADLINES = {
    Verdict.RUNS: ("Starts and fits", "bold green"),
    Verdict.MISSES: ("Starts and fits, but does not keep what is asked", "bold yellow"),
    Verdict.DOES_NOT_FIT: ("Does not fit in memory", "bold red"),
    Verdict.DOES_NOT_START: ("Does not start", "bold red"),
}

_HEAD = {"serving": "At the asked load: ", "training": "A step: "}

_HEADS = {
    Standing.READ: "Read",
    Standing.NOT_PRICED: "Not in the figures",
    Standing.UNKNOWN: "Not known, and not in the figures",
    Standing.HARMLESS: "Ignored, changes neither speed nor memory",
}


def print_explanation(console: Console, found: Explanation) -> None:
    """Print the page of an explained command."""
    words, style = _HEADLINES[found.verdict]
    groups = " + ".join(f"{group.nodes} x {group.node.name}" for group in found.request.cluster.groups)
    devices = counted(found.request.cluster.n_devices, "device")
    console.print(plain(f"{found.request.model.name} by {found.launcher.value} on {groups} ({devices})", style="bold"))
    counted_words = f"{words}, by what is counted" if found.not_counted else words
    parts: list[RenderableType] = [plain(counted_words, style=style)]
    parts += [_indented(problem) for problem in found.problems]
    if found.reason is not None:
        parts.append(_indented(found.reason.message))
    if found.not_counted:
        parts.append(plain("Not counted, so the run takes more time and memory:", style="bold"))
        parts += [_indented(part) for part in found.not_counted]
    measured = measured_parts(found)
    for part in (Group(*parts), *_figures(found), *measured, *_better(found), *_flags(found.given), *_notes(found)):
        console.print()
        console.print(part)


def _figures(found: Explanation) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if found.plan is not None and found.plan.predicted is not None:
        parts.append(plain(_HEAD[found.request.workload.kind], style="bold") + _speed(found.plan))
        parts += memory_at_risk(found.plan.predicted)
    if found.most is not None and found.most.predicted is not None:
        parts.append(plain(f"At most{_targets(found)}: ", style="bold") + _speed(found.most))
    return [*parts, *_layout(found.plan)]


def _targets(found: Explanation) -> str:
    slo = found.request.slo
    return ", without targets" if slo.p95_ttft_ms is None and slo.p95_tpot_ms is None else ", with its targets"


def _speed(plan: Plan) -> Text:
    assert plan.predicted is not None, "a plan that runs has figures"
    return plain(speed_in_words(plan.predicted, devices=plan.devices))


def _layout(plan: Plan | None) -> list[RenderableType]:
    if plan is None or plan.layout is None:
        return []
    if isinstance(plan.layout, OfWorkers):
        return serving_parts(plan.layout)
    pipelines = pipelines_of(plan)
    return [
        Group(plain(f"Layout: {axes(pipelines.axes)}"), stage_table(pipelines.stages, step="micro-batch", trains=True)),
        memory_bars(pipelines.stages),
    ]


def _better(found: Explanation) -> list[RenderableType]:
    if found.none_better:
        return [plain(f"No better command is looked for: {found.none_better}.")]
    if found.better is None:
        return [plain("No better plan of this launcher was found.")] if found.searched else []
    better = found.better
    gain = "" if better.gain is None else f", {percent(better.gain)} less {better.plan.certificate.unit}"
    command = Group(*(plain(line) for line in better.command.splitlines()))
    return [plain(f"Better{gain}: ", style="bold") + _speed(better.plan), _differences(better), command]


def _differences(better: Better) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for column in ("flag", "given", "better"):
        table.add_column(column)
    for each in better.differences:
        table.add_row(*(plain(text or "-") for text in (each.flag, each.given, each.better)))
    return table


def _flags(given: tuple[GivenFlag, ...]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for standing, head in _HEADS.items():
        flags = [flag for flag in given if flag.standing is standing]
        if flags:
            lines = [_indented(f"{' '.join(filter(None, (flag.name, flag.value)))}{_why(flag)}") for flag in flags]
            parts.append(Group(plain(f"{head}:", style="bold"), *lines))
    return parts


def _why(flag: GivenFlag) -> str:
    return f": {flag.why}" if flag.why else ""


def _notes(found: Explanation) -> list[RenderableType]:
    return [Group(plain("Taken for granted:", style="bold"), *(_indented(note) for note in found.notes))] if found.notes else []


MOST_CAUSES = 6
"""Causes that explain a gap which the page shows, and as many that explain a part of it; the document has all."""

_NAMES = {
    Metric.STEP_TIME: "a step",
    Metric.TOKENS: "all devices",
    Metric.MFU: "MFU",
    Metric.TTFT: "P95 TTFT",
    Metric.TPOT: "P95 TPOT",
}

_PARTS = {
    "compute_s": "computation",
    "recompute_s": "recomputation",
    "tp_comm_s": "tensor parallelism",
    "cp_comm_s": "context parallelism",
    "pp_comm_s": "sends between stages",
    "dp_comm_s": "gradients and weights",
    "bubble_s": "pipeline bubble",
    "optimizer_s": "optimizer",
    "ep_comm_s": "expert parallelism",
    "offload_s": "offload",
}
SMALLEST_PART = 0.02
"""Share of a step from which on a part of it is named."""


def measured_parts(found: Explanation) -> list[RenderableType]:
    """Return the part of the page; nothing where no figure was measured."""
    answer = found.measured
    if answer is None or found.plan is None:
        return []
    lines: list[RenderableType] = [plain("Measured:", style="bold"), *(_indented(_compared(each)) for each in answer.compared)]
    if answer.is_as_predicted:
        lines.append(_indented(f"As predicted: nothing to look for.{_limits(found.plan)}"))
        return [Group(*lines)]
    return [Group(*lines), *_causes(answer), plain(_next(answer))]


def _indented(text: str, by: int = 2) -> Padding:
    return Padding(plain(text), (0, 0, 0, by))


def _compared(each: Compared) -> str:
    band = f"{figure(each.metric, each.low)} to {figure(each.metric, each.high)}"
    ratio = math.exp(abs(each.slowness))
    way = "slower" if each.slowness >= 0.0 else "faster"
    how = "inside the band" if each.is_within else f"{ratio:.2f} times {way}, outside of the band"
    measured, predicted = figure(each.metric, each.measured), figure(each.metric, each.predicted)
    return f"{each.text} is {measured} ({_NAMES[each.metric]}), predicted {predicted} ({band}): {how}"


def figure(metric: Metric, value: float) -> str:
    """Return a figure with its unit."""
    if metric.is_time:
        return seconds(value)
    return percent(value) if metric is Metric.MFU else f"{significant(value)} tokens/s"


def _causes(answer: MeasuredAnswer) -> list[RenderableType]:
    whole = [each for each in answer.causes if each.explains]
    partly = [each for each in answer.causes if not each.explains]
    parts: list[RenderableType] = []
    if whole:
        parts.append(_listed("What would explain it, the likelier first; the checks tell them apart:", answer, whole))
    else:
        parts.append(plain("Nothing that is priced explains it. A profile of one step (torch.profiler, nsys) tells more."))
    if partly:
        parts.append(_listed("What would explain a part of it:", answer, partly))
    return parts


def _listed(head: str, answer: MeasuredAnswer, causes: list[NamedCause]) -> Group:
    metric, measured = answer.gap.metric, figure(answer.gap.metric, answer.gap.measured)
    lines: list[RenderableType] = [plain(head, style="bold")]
    for number, each in enumerate(causes[:MOST_CAUSES], start=1):
        share = "" if each.explains else f" ({percent(each.share)} of the gap)"
        lines.append(_indented(f"{number}. {each.what}: {figure(metric, each.figure)}, measured {measured}{share}"))
        lines.append(_indented(f"check: {each.check}", by=5))
    left_out = len(causes) - MOST_CAUSES
    return Group(*lines, *([_indented(f"{left_out} more in --json")] if left_out > 0 else []))


def _limits(plan: Plan) -> str:
    """What limits a plan: the largest parts of a step's time, or how busy its replicas are."""
    if isinstance(plan.layout, Replicas):
        load = plan.layout.load
        return f" A decode step takes {seconds(load.decode_step_s)}, and replicas are {percent(load.utilisation)} busy."
    if not isinstance(plan.layout, Uniform) or plan.layout.placement.breakdown is None:
        return ""
    return f" A step is {breakdown_in_words(plan.layout.placement.breakdown)}."


def breakdown_in_words(breakdown: TimeBreakdown) -> str:
    """Return the parts of a step's time as shares, the largest first."""
    parts = {each.name: getattr(breakdown, each.name) for each in fields(breakdown)}
    whole_s = sum(parts.values())
    named = [name for name in sorted(parts, key=parts.__getitem__, reverse=True) if parts[name] >= SMALLEST_PART * whole_s]
    return ", ".join(f"{percent(parts[name] / whole_s)} {_PARTS[name]}" for name in named)


def _next(answer: MeasuredAnswer) -> str:
    metric = "step-time" if answer.gap.metric in (Metric.STEP_TIME, Metric.MFU) else "log"
    return f"Next: when the run is as it should be, meshwright observe PLAN --{metric} stores it, and plans learn from it."
