"""A plan as one page of HTML that opens offline: no script, no outside request, light and dark, down to 390 px."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.app.base.figures import (
    axes,
    counted,
    gib,
    number_range,
    percent,
    ranks_of,
    seconds,
    significant,
    speed_in_words,
)
from meshwright.app.base.plan_words import certificate_in_words, equals_in_words, rates_of, run_in_words
from meshwright.app.base.templates import Hyperlink, Templates, Words
from meshwright.app.launching.exporters import first_export
from meshwright.app.pictures.drawings import (
    breakdown_drawing,
    frontier_drawing,
    interactivity_drawing,
    memory_drawing,
    stages_of,
    timeline_drawing,
)
from meshwright.app.pictures.rank_map import map_drawing
from meshwright.app.pictures.step_timeline import has_step
from meshwright.solver.answer.layouts import ByGroup, Pipelines, Stagewise, Uniform
from meshwright.solver.answer.pipeline_plan import placement_of
from meshwright.solver.answer.plan import AnsweredRequest, FrontierPoint, Plan
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.answer.stage import OperatorSharding, Stage
from meshwright.solver.blocks.tp_strategies import REPLICATE, STORED_SPLIT
from meshwright.solver.problem.launchers.table import asked_launcher
from meshwright.solver.problem.request import PlanRequest

MOST_STAGES = 64
"""Stages of the table; the plan document has all."""

MOST_POINTS = 40
"""Plans of the table of the frontier; the plan document has all."""

TEMPLATES = Path(__file__).parent / "templates"
"""Of plans, and of the parts that all pages are made of."""

_TEMPLATES = Templates(TEMPLATES)


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """A table of a page, and how many rows of the plan document it leaves out."""

    name: str
    heads: tuple[str, ...]
    rows: Sequence[Sequence[Words]]
    caption: str = ""
    left: int = 0


@dataclass(frozen=True, kw_only=True)
class PagePart:
    """A part of the page of a plan, in the order of its fields; those that are empty are not shown."""

    title: str = ""
    drawing: str = ""
    said: str = ""
    tables: Sequence[PageTable] = ()
    items: Sequence[Words] = ()
    command: str = ""


@dataclass(frozen=True)
class PlanView:
    """What the page of a plan shows, in the order of its fields."""

    name: str
    title: str
    said: Sequence[str]
    remedies: Sequence[str]
    parts: Sequence[PagePart]
    notes: Sequence[str]


def plan_page(answered: AnsweredRequest) -> str:
    """Return the page of a plan, or of the reason why there is none."""
    return _TEMPLATES.render("file.html", view=plan_view(answered))


Follow = Callable[[str], str | None]
"""The place of the page that plans a plan by the name that an answer gives it; None where there is none."""


def no_place(name: str) -> None:
    """Lead nowhere: what a file does, which has no service behind it."""


def plan_view(answered: AnsweredRequest, follow: Follow = no_place) -> PlanView:
    """Return what the page of a plan shows; other plans that it names lead where ``follow`` says."""
    plan, request = answered.plan, answered.request
    name = plan.model or request.model.name
    rates = rates_of(plan, request) if plan.feasible else None
    said = [] if rates is None else [str(rates)]
    said += [] if not plan.feasible or (run := run_in_words(plan, request)) is None else [run]
    said += [certificate_in_words(plan, request), f"Space: {plan.certificate.space}"]
    said += [] if plan.reason is None else [plan.reason.message]
    return PlanView(
        name,
        f"{name} on {counted(plan.devices or request.cluster.n_devices, 'device')}: {_headline(plan)}",
        said,
        () if plan.reason is None else plan.reason.remedies,
        list(_of_plan(answered, follow)) if plan.feasible else [],
        plan.notes,
    )


def _headline(plan: Plan) -> str:
    if not plan.feasible or plan.predicted is None:
        return "no plan"
    return speed_in_words(plan.predicted)


def _of_plan(answered: AnsweredRequest, follow: Follow) -> Iterator[PagePart]:
    plan = answered.plan
    if has_step(answered):
        yield PagePart(title="One step", drawing=timeline_drawing(answered))
    breakdown = placement_of(plan).breakdown
    if breakdown is not None:
        yield PagePart(title="Where the time of a step goes", drawing=breakdown_drawing(breakdown))
    yield PagePart(title="Memory of the fullest device of each stage", drawing=memory_drawing(answered))
    yield PagePart(title="Stages", tables=[_stage_table(stages_of(plan))])
    yield PagePart(title="Who sits where", drawing=map_drawing(answered))
    tables = [_table(name, shardings, tp) for name, shardings, tp in _parts(plan) if tp > 1 and shardings]
    if tables:
        yield PagePart(title="How operators are sharded", tables=tables)
    if len(plan.frontier) > 1:
        drawing = frontier_drawing(answered, follow)
        title = "Plans that no other beats in all respects"
        yield PagePart(title=title, drawing=drawing, tables=[_frontier_table(plan.frontier, follow)])
    if plan.interactivity is not None:
        yield PagePart(title="Throughput against interactivity", drawing=interactivity_drawing(plan.interactivity))
    if plan.predicted is not None and plan.predicted.bands:
        yield PagePart(title="How far to trust it", items=list(_bands(plan.predicted)))
    if plan.runners_up:
        items = [_with(each.summary, each.why_not, follow) for each in plan.runners_up]
        yield PagePart(title="Why not another plan", items=items)
    if plan.equals is not None and plan.equals.count > 1:
        if plan.equals.plainest is not None:
            plainest = plan.equals.plainest
            yield PagePart(title="The plainest of equal plans", items=[_with(plainest.summary, plainest.differs, follow)])
        items = [_with(each.summary, each.differs, follow) for each in plan.equals.also_try]
        yield PagePart(title="Also try", said=equals_in_words(plan.equals), items=items)
    if plan.suggestions:
        yield PagePart(title="What would make it better", items=[each.in_words for each in plan.suggestions])
    command = _launch_command(plan, answered.request)
    if command is not None:
        yield PagePart(title="Launch", command=command)
    yield PagePart(said=f"Plan {plan.digest}")


def _bands(predicted: Predicted) -> Iterable[str]:
    for name, band in predicted.bands.items():
        yield f"{_NAMES.get(name, name)}: {_figure(name, band.low)} to {_figure(name, band.high)}; {band.basis}"


_NAMES = {
    "tokens_per_s": "tokens/s",
    "step_time_s": "time of a step",
    "mfu": "MFU",
    "ttft_p95_s": "P95 time to first token",
    "tpot_p95_s": "P95 time per output token",
    "peak_memory_bytes": "memory of the fullest device",
    "energy_per_step_j": "energy of a step, J",
    "energy_per_token_j": "energy of a token, J",
    "cost_per_million_tokens": "USD per million tokens",
    "power_w": "power, W",
}
"""Predicted figures in words."""


def _figure(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return gib(value)
    return significant(value) if "per_s" in name or not name.endswith("_s") else seconds(value)


def _stage_table(stages: Sequence[Stage]) -> PageTable:
    heads = ("stage", "layers", "ranks", "degrees", "recompute", "ZeRO", "a micro-batch or step", "memory")
    rows = [_cells(row, stage) for row, stage in enumerate(stages[:MOST_STAGES])]
    return PageTable(name="Stages", heads=heads, rows=rows, left=len(stages) - len(rows))


def _cells(row: int, stage: Stage) -> tuple[str, ...]:
    return (
        str(row),
        " + ".join(f"{span.count} x {span.block}" for span in stage.blocks),
        ranks_of(stage.devices),
        axes(stage.axes),
        stage.recompute.value + stage.of_layers,
        str(stage.zero_stage),
        seconds(stage.time_s),
        f"{gib(stage.memory.total_bytes)} ({percent(stage.memory.total_bytes / stage.memory.capacity_bytes)})",
    )


def _launch_command(plan: Plan, request: PlanRequest) -> str | None:
    preferred = asked_launcher(request)
    exported = None if preferred is None else first_export(plan, request, preferred)
    return None if exported is None else exported.command


def _frontier_table(points: Sequence[FrontierPoint], follow: Follow) -> PageTable:
    heads = ("plan", "devices", "tokens/s", "memory of a device", "USD per million tokens", "kJ a step")
    rows = [
        (
            _named(point.summary, follow),
            f"{point.devices:,}",
            significant(point.tokens_per_s),
            gib(point.peak_memory_bytes),
            "" if point.cost_per_million_tokens is None else f"{point.cost_per_million_tokens:.3f}",
            "" if point.energy_per_step_j is None else significant(point.energy_per_step_j / 1e3),
        )
        for point in points[:MOST_POINTS]
    ]
    return PageTable(name="The frontier", heads=heads, rows=rows, left=len(points) - len(rows))


def _with(name: str, said: str, follow: Follow) -> Words:
    """Another plan with what is said of it."""
    return _named(name, follow), f": {said}"


def _named(name: str, follow: Follow) -> Words:
    place = follow(name)
    return name if place is None else Hyperlink(place, name)


# Shardings of a plan's operators over tensor-parallel ranks, a table for stages that are alike.

MOST_ROWS = 200
"""Operators of a table; the plan document has all."""


def _parts(plan: Plan) -> Iterator[tuple[str, Sequence[OperatorSharding], int]]:
    match plan.layout:
        case Uniform(pipelines=pipelines) | Stagewise(pipelines=pipelines):
            yield from _of_pipelines(pipelines, "")
        case ByGroup(groups=groups):
            for each in groups:
                yield from _of_pipelines(each.pipelines, f"{each.group}: ")
        case _:
            return


def _of_pipelines(pipelines: Pipelines, group: str) -> Iterator[tuple[str, Sequence[OperatorSharding], int]]:
    alike: dict[tuple[tuple[OperatorSharding, ...], int], list[int]] = {}
    for number, stage in enumerate(pipelines.stages):
        alike.setdefault((stage.shardings or pipelines.shardings, stage.axes.tp), []).append(number)
    for (shardings, tp), numbers in alike.items():
        stages = "all stages" if len(alike) == 1 else f"stages {', '.join(map(str, numbers))}"
        if len(alike) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
            stages = f"stages {number_range(numbers)}" if len(numbers) > 1 else f"stage {numbers[0]}"
        yield f"{group}{stages}, over tp {tp}", shardings, tp


def _table(name: str, shardings: Sequence[OperatorSharding], tp: int) -> PageTable:
    rows = [(each.block, each.operator, _in_words(each.strategy, tp)) for each in shardings[:MOST_ROWS]]
    heads = ("block", "operator", "sharding")
    return PageTable(name=name, heads=heads, rows=rows, caption=name, left=len(shardings) - len(rows))


def _in_words(strategy: str, tp: int) -> str:
    dim = strategy.removesuffix(STORED_SPLIT)
    words = "whole on every rank" if dim == REPLICATE else f"{dim} split {tp} ways"
    return words if dim == strategy else f"{words}, weights stored {tp} ways"
