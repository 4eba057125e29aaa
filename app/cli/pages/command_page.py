"""The page that ``meshwright explain`` prints: the verdict first, then figures, what is better, and every flag."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.app.base.console import plain
from meshwright.app.base.figures import axes, counted, percent, speed_in_words
from meshwright.app.cli.pages.measured_page import measured_parts
from meshwright.app.cli.pages.plan_page import memory_at_risk, memory_bars, serving_parts, stage_table
from meshwright.app.launching.flags.flag import GivenFlag, Standing
from meshwright.app.service.explaining.explanation import Better, Explanation, Verdict
from meshwright.solver.answer.layouts import OfWorkers
from meshwright.solver.answer.pipeline_plan import pipelines_of
from meshwright.solver.answer.plan import Plan

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
    parts: list[RenderableType] = [plain(words, style=style)]
    parts += [plain(f"  {problem}") for problem in found.problems]
    if found.reason is not None:
        parts.append(plain(f"  {found.reason.message}"))
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
            lines = [plain(f"  {' '.join(filter(None, (flag.name, flag.value)))}{_why(flag)}") for flag in flags]
            parts.append(Group(plain(f"{head}:", style="bold"), *lines))
    return parts


def _why(flag: GivenFlag) -> str:
    return f": {flag.why}" if flag.why else ""


def _notes(found: Explanation) -> list[RenderableType]:
    return (
        [Group(plain("Taken for granted:", style="bold"), *(plain(f"  {note}") for note in found.notes))] if found.notes else []
    )
