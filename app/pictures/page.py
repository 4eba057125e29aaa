"""A plan as one page of HTML that opens offline: no script, no outside request, light and dark, down to 390 px."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwright.app.exporters import export, startable_by
from meshwright.app.pictures.drawings import frontier_drawing, memory_drawing, stages_of, timeline_drawing
from meshwright.app.pictures.step_timeline import step_timeline
from meshwright.app.quoting import html_lines, html_text
from meshwright.app.text.certificate import certificate_in_words
from meshwright.app.text.equals import equals_in_words
from meshwright.app.text.figures import axes, counted, gib, percent, ranks_of, seconds, significant
from meshwright.app.text.load import load_in_words
from meshwright.app.text.speed import speed_in_words
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.launchers.table import launcher_of
from meshwright.solver.problem.request import PlanRequest, ServingRequest

MOST_STAGES = 64
"""Stages of the table; the plan document has all."""

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


def plan_article(answered: AnsweredRequest) -> str:
    """Return what the page of a plan shows, as HTML without a frame."""
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
        parts += _of_plan(answered)
    parts.append(_list(plan.notes))
    return "".join(parts)


def _headline(plan: Plan) -> str:
    if not plan.feasible or plan.predicted is None:
        return "no plan"
    return speed_in_words(plan.predicted)


def _of_plan(answered: AnsweredRequest) -> Iterable[str]:
    plan, request = answered.plan, answered.request
    if step_timeline(answered) is not None:
        yield _drawn("One step", timeline_drawing(answered))
    yield _drawn("Memory of the fullest device of each stage", memory_drawing(answered))
    yield _stage_table(stages_of(plan))
    if len(plan.frontier) > 1:
        yield _drawn("Plans that no other beats in all respects", frontier_drawing(answered))
    if plan.predicted is not None and plan.predicted.bands:
        yield f"<h2>How far to trust it</h2>{_list(_bands(plan.predicted))}"
    if plan.runners_up:
        yield f"<h2>Why not another plan</h2>{_list(f'{each.summary}: {each.why_not}' for each in plan.runners_up)}"
    if plan.equals is not None and plan.equals.count > 1:
        if plan.equals.plainest is not None:
            plainest = plan.equals.plainest
            yield f"<h2>The plainest of equal plans</h2>{_paragraph(f'{plainest.summary}: {plainest.differs}')}"
        named = (f"{each.summary}: {each.differs}" for each in plan.equals.also_try)
        yield f"<h2>Also try</h2>{_paragraph(equals_in_words(plan.equals))}{_list(named)}"
    if plan.suggestions:
        yield f"<h2>What would make it better</h2>{_list(f'{each.change}: {each.reaches}' for each in plan.suggestions)}"
    command = _launch_command(plan, request)
    if command is not None:
        yield f'<h2>Launch</h2><pre tabindex="0" role="region" aria-label="Launch command">{html_lines(command)}</pre>'
    yield _paragraph(f"Plan {plan.digest}")


def _bands(predicted: Predicted) -> Iterable[str]:
    for name, band in predicted.bands.items():
        yield f"{name}: {_figure(name, band.low)} to {_figure(name, band.high)}; {band.basis}"


def _figure(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return gib(value)
    return significant(value) if "per_s" in name or not name.endswith("_s") else seconds(value)


def _stage_table(stages: Sequence[Stage]) -> str:
    names = ("stage", "layers", "ranks", "degrees", "recompute", "ZeRO", "a micro-batch or step", "memory")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    rows = "".join(f"<tr>{''.join(_cells(row, stage))}</tr>" for row, stage in enumerate(stages[:MOST_STAGES]))
    left = len(stages) - MOST_STAGES
    more = _paragraph(f"{left} more in the plan document") if left > 0 else ""
    return f"<h2>Stages</h2>{_scrolled('Stages')}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}"


def _cells(row: int, stage: Stage) -> Iterable[str]:
    texts = (
        str(row),
        " + ".join(f"{span.count} x {span.block}" for span in stage.blocks),
        ranks_of(stage.devices),
        axes(stage.axes),
        stage.recompute.value,
        str(stage.zero_stage),
        seconds(stage.time_s),
        f"{gib(stage.memory.total_bytes)} ({percent(stage.memory.total_bytes / stage.memory.capacity_bytes)})",
    )
    return (f"<td>{html_text(text)}</td>" for text in texts)


def _launch_command(plan: Plan, request: PlanRequest) -> str | None:
    preferred = launcher_of(request.search.engine) if isinstance(request, ServingRequest) else request.search.launcher
    launcher = None if preferred is None else startable_by(plan, request, preferred)
    return None if launcher is None else export(plan, request, launcher.value).command


def _drawn(title: str, svg: str) -> str:
    return f"<h2>{title}</h2>{_scrolled(title, 'wide')}{svg}</div>"


def _scrolled(name: str, look: str = "") -> str:
    """The opening of a place that scrolls sideways, by keyboard too; ``name`` is text and is read to who doesn't see it."""
    return f'<div class="{f"scroll {look}".strip()}" tabindex="0" role="region" aria-label="{html_text(name)}">'


def _paragraph(text: str) -> str:
    return f"<p>{html_text(text)}</p>\n"


def _list(texts: Iterable[str]) -> str:
    lines = "".join(f"<li>{html_text(text)}</li>" for text in texts)
    return f"<ul>{lines}</ul>" if lines else ""
