"""A plan as one page of HTML that opens offline: no script, no outside request, light and dark, down to 390 px."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

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
from meshwright.app.base.plan_words import certificate_in_words, equals_in_words, load_in_words
from meshwright.app.base.quoting import html_lines, html_text
from meshwright.app.launching.exporters import export, startable_by
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
from meshwright.solver.answer.frontier import FrontierPoint
from meshwright.solver.answer.layouts import ByGroup, Pipelines, Stagewise, Uniform
from meshwright.solver.answer.pipeline_plan import placement_of
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.answer.stage import OperatorSharding, Stage
from meshwright.solver.blocks.tp_strategies import REPLICATE
from meshwright.solver.problem.launchers.table import launcher_of
from meshwright.solver.problem.request import PlanRequest, ServingRequest

MOST_STAGES = 64
"""Stages of the table; the plan document has all."""

MOST_POINTS = 40
"""Plans of the table of the frontier; the plan document has all."""

STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem;color:#1f2328;background:#fff}
p,li,h1{overflow-wrap:anywhere}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}.scroll{overflow-x:auto}
table{border-collapse:collapse}th,td{padding:.2rem .7rem .2rem 0;text-align:left;white-space:nowrap}
pre{overflow-x:auto;padding:.7rem;background:#8882}.wide svg{min-width:640px}
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}}
"""


def plan_page(answered: AnsweredRequest) -> str:
    """Return the page of a plan, or of the reason why there is none."""
    name = html_text(answered.plan.model or answered.request.model.name)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Plan: '
        f'{name}</title><meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{STYLE}</style></head><body><main>\n{plan_article(answered)}</main></body></html>\n"
    )


Follow = Callable[[str], str | None]
"""The place of the page that plans a plan by the name that an answer gives it; None where there is none."""


def no_place(name: str) -> None:
    """Lead nowhere: what a file does, which has no service behind it."""


def plan_article(answered: AnsweredRequest, follow: Follow = no_place) -> str:
    """Return what the page of a plan shows, as HTML without a frame; other plans that it names lead where ``follow`` says."""
    plan, request = answered.plan, answered.request
    name = html_text(plan.model or request.model.name)
    parts = [f"<h1>{name} on {counted(plan.devices or request.cluster.n_devices, 'device')}: {html_text(_headline(plan))}</h1>"]
    load = load_in_words(plan, request) if plan.feasible else None
    parts += [] if load is None else [_paragraph(load)]
    parts += [_paragraph(certificate_in_words(plan, request)), _paragraph(f"Space: {plan.certificate.space}")]
    if plan.reason is not None:
        parts.append(_paragraph(plan.reason.message))
        parts.append(_list(plan.reason.remedies))
    if plan.feasible:
        parts += _of_plan(answered, follow)
    parts.append(_list(plan.notes))
    return "".join(parts)


def _headline(plan: Plan) -> str:
    if not plan.feasible or plan.predicted is None:
        return "no plan"
    return speed_in_words(plan.predicted)


def _of_plan(answered: AnsweredRequest, follow: Follow) -> Iterable[str]:
    plan = answered.plan
    if has_step(answered):
        yield _drawn("One step", timeline_drawing(answered))
    breakdown = placement_of(plan).breakdown
    if breakdown is not None:
        yield _drawn("Where the time of a step goes", breakdown_drawing(breakdown))
    yield _drawn("Memory of the fullest device of each stage", memory_drawing(answered))
    yield _stage_table(stages_of(plan))
    yield _drawn("Who sits where", map_drawing(answered))
    yield from sharding_tables(plan)
    if len(plan.frontier) > 1:
        yield _drawn("Plans that no other beats in all respects", frontier_drawing(answered, follow))
        yield _frontier_table(plan.frontier, follow)
    if plan.interactivity is not None:
        yield _drawn("Throughput against interactivity", interactivity_drawing(plan.interactivity))
    if plan.predicted is not None and plan.predicted.bands:
        yield f"<h2>How far to trust it</h2>{_list(_bands(plan.predicted))}"
    if plan.runners_up:
        yield f"<h2>Why not another plan</h2>{_plans(((each.summary, each.why_not) for each in plan.runners_up), follow)}"
    if plan.equals is not None and plan.equals.count > 1:
        if plan.equals.plainest is not None:
            plainest = plan.equals.plainest
            yield f"<h2>The plainest of equal plans</h2>{_plans([(plainest.summary, plainest.differs)], follow)}"
        named = _plans(((each.summary, each.differs) for each in plan.equals.also_try), follow)
        yield f"<h2>Also try</h2>{_paragraph(equals_in_words(plan.equals))}{named}"
    if plan.suggestions:
        yield f"<h2>What would make it better</h2>{_list(f'{each.change}: {each.reaches}' for each in plan.suggestions)}"
    command = _launch_command(plan, answered.request)
    if command is not None:
        yield f'<h2>Launch</h2><pre tabindex="0" role="region" aria-label="Launch command">{html_lines(command)}</pre>'
    yield _paragraph(f"Plan {plan.digest}")


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


def _stage_table(stages: Sequence[Stage]) -> str:
    heads = ("stage", "layers", "ranks", "degrees", "recompute", "ZeRO", "a micro-batch or step", "memory")
    rows = [tuple(html_text(text) for text in _cells(row, stage)) for row, stage in enumerate(stages[:MOST_STAGES])]
    left = len(stages) - MOST_STAGES
    more = _paragraph(f"{left} more in the plan document") if left > 0 else ""
    return f"<h2>Stages</h2>{plain_table('Stages', heads, rows)}{more}"


def _cells(row: int, stage: Stage) -> tuple[str, ...]:
    return (
        str(row),
        " + ".join(f"{span.count} x {span.block}" for span in stage.blocks),
        ranks_of(stage.devices),
        axes(stage.axes),
        stage.recompute.value,
        str(stage.zero_stage),
        seconds(stage.time_s),
        f"{gib(stage.memory.total_bytes)} ({percent(stage.memory.total_bytes / stage.memory.capacity_bytes)})",
    )


def _launch_command(plan: Plan, request: PlanRequest) -> str | None:
    preferred = launcher_of(request.search.engine) if isinstance(request, ServingRequest) else request.search.launcher
    launcher = None if preferred is None else startable_by(plan, request, preferred)
    return None if launcher is None else export(plan, request, launcher.value).command


def _frontier_table(points: Sequence[FrontierPoint], follow: Follow) -> str:
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
    left = len(points) - len(rows)
    more = _paragraph(f"{left} more in the plan document") if left > 0 else ""
    return f"{plain_table('The frontier', heads, rows)}{more}"


def _plans(named: Iterable[tuple[str, str]], follow: Follow) -> str:
    """Other plans with what is said of each."""
    lines = "".join(f"<li>{_named(name, follow)}: {html_text(said)}</li>" for name, said in named)
    return f"<ul>{lines}</ul>" if lines else ""


def _named(name: str, follow: Follow) -> str:
    place = follow(name)
    return html_text(name) if place is None else f'<a href="{html_text(place)}">{html_text(name)}</a>'


def _drawn(title: str, svg: str) -> str:
    return f"<h2>{title}</h2>{scrolled(title, 'wide')}{svg}</div>"


def _paragraph(text: str) -> str:
    return f"<p>{html_text(text)}</p>\n"


def _list(texts: Iterable[str]) -> str:
    lines = "".join(f"<li>{html_text(text)}</li>" for text in texts)
    return f"<ul>{lines}</ul>" if lines else ""


# Shardings of a plan's operators over tensor-parallel ranks, a table for stages that are alike.

MOST_ROWS = 200
"""Operators of a table; the plan document has all."""


def sharding_tables(plan: Plan) -> Iterator[str]:
    """Yield the heading and tables of a training plan whose operators are sharded; nothing of others."""
    tables = [_table(name, shardings, tp) for name, shardings, tp in _parts(plan) if tp > 1 and shardings]
    if tables:
        yield f"<h2>How operators are sharded</h2>{''.join(tables)}"


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


def _table(name: str, shardings: Sequence[OperatorSharding], tp: int) -> str:
    rows = [
        (html_text(each.block), html_text(each.operator), html_text(_in_words(each.strategy, tp)))
        for each in shardings[:MOST_ROWS]
    ]
    left = len(shardings) - len(rows)
    more = f"<p>{left} more in the plan document</p>" if left > 0 else ""
    return f"<p>{html_text(name)}</p>{plain_table(name, ('block', 'operator', 'sharding'), rows)}{more}"


def _in_words(strategy: str, tp: int) -> str:
    return "whole on every rank" if strategy == REPLICATE else f"{strategy} split {tp} ways"


# Tables of pages: they scroll sideways, by keyboard too.


def plain_table(name: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its name and heads are text, cells are HTML."""
    head = "".join(f'<th scope="col">{html_text(text)}</th>' for text in heads)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"{scrolled(name)}<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"


def scrolled(name: str, look: str = "") -> str:
    """Return the opening of a place that scrolls sideways; ``name`` is text and is read to who doesn't see it."""
    return f'<div class="{f"scroll {look}".strip()}" tabindex="0" role="region" aria-label="{html_text(name)}">'
