"""Parts of a plan's page beside the plan: what lost, what is equal, what would be better, the frontier, calibrations."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from meshwright.app.cli.pages.frontier_table import frontier_parts
from meshwright.app.cli.pages.interactivity_chart import interactivity_parts
from meshwright.app.text.console import indented, plain
from meshwright.app.text.equals import equals_in_words
from meshwright.app.text.figures import counted, percent, seconds
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import FrontierScope
from meshwright.solver.problem.request import PlanRequest

SHOWN_RUNNERS_UP = 3


def beside_the_plan(plan: Plan, request: PlanRequest, *, full: bool) -> list[RenderableType]:
    """Return all of it, or what fits a screen and what was asked for."""
    better, frontier = _improvements(plan), [*frontier_parts(plan), *interactivity_parts(plan)]
    if full:
        return [_comparison(plan, SHOWN_RUNNERS_UP), *_equals(plan), *better, *frontier, _calibration(plan)]
    swept = request.search.frontier is FrontierScope.SWEPT
    return [_comparison(plan, 1), *better, *(frontier if swept else []), _calibration_in_short(plan)]


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


def _improvements(plan: Plan) -> list[RenderableType]:
    """The changes of the request that make the plan better; nothing where none was asked for, or found."""
    if not plan.suggestions:
        return []
    lines: list[RenderableType] = [plain("What would make it better (solved)", style="bold")]
    lines += [indented(plain(f"- {each.change}: {each.reaches}"), 2) for each in plan.suggestions]
    return [Group(*lines)]


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
