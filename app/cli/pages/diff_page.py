"""The page that ``meshwright diff`` prints: what stays, what moves and over which links, and which stages receive most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from meshwright.app.base.console import plain
from meshwright.app.base.figures import amount, axes, gib, number_range, percent, seconds
from meshwright.app.cli.pages.plan_page import next_line
from meshwright.solver.answer.layouts import Pipelines
from meshwright.solver.answer.pipeline_plan import leading_pipelines
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.serving.explain import Excluded as LayoutExcluded
from meshwright.solver.serving.explain import LayoutExplanation
from meshwright.solver.switching import Switch, SwitchTraffic
from meshwright.solver.training.explain import Alternative, Excluded, Explanation, StepFigures


def print_diff(console: Console, switch: Switch, old: AnsweredRequest, new: AnsweredRequest, *, command: str | None) -> None:
    """Print the page of a change of plans, and the command that goes on from it."""
    _print_moves(console, switch, old, new)
    if command is not None:
        console.print(next_line(command))


def _print_moves(console: Console, switch: Switch, old: AnsweredRequest, new: AnsweredRequest) -> None:
    console.print(plain(f"From {_layout(old.plan)}", style="bold"))
    console.print(plain(f"  to {_layout(new.plan)}", style="bold"))
    if switch.moved_bytes == 0:
        console.print()
        console.print(plain("Every device holds what it needs already: nothing moves."))
        return
    console.print()
    console.print(
        plain(
            f"{gib(switch.moved_bytes)} of weights and optimizer state move, {percent(switch.kept_share)} stay in place; "
            f"at least {seconds(switch.time_s)} (network {seconds(switch.network_s)}, fabric {seconds(switch.fabric_s)})"
        )
    )
    if switch.storage_bytes > 0:
        console.print(
            plain(f"{gib(switch.storage_bytes)} are on no device that is left: they come from a checkpoint", style="yellow")
        )
    console.print(_kinds(switch))
    console.print(_stages(switch.total, new.plan))


def _layout(plan: Plan) -> str:
    pipelines = _pipelines(plan)
    return f"{axes(pipelines.axes)}, ZeRO-{pipelines.stages[0].zero_stage}, {plan.devices:,} devices"


def _pipelines(plan: Plan) -> Pipelines:
    pipelines = leading_pipelines(plan)
    assert pipelines is not None, "only training plans with a layout are compared"
    return pipelines


def _kinds(switch: Switch) -> Table:
    table = _table("all devices", "stays", "own node", "network", "storage")
    for name, moved in (("weights", switch.weights), ("optimizer state", switch.optimizer)):
        sums = (moved.kept, moved.from_node, moved.from_network, moved.from_storage)
        table.add_row(name, *(gib(float(values.sum())) for values in sums))
    return table


def _stages(total: SwitchTraffic, plan: Plan) -> Table:
    """Means of the devices of each stage, stages of equal means together."""
    table = _table("a device of stage", "keeps", "receives", "sends")
    rows: dict[tuple[str, ...], list[int]] = {}
    for index, stage in enumerate(_pipelines(plan).stages):
        ranks = np.concatenate([np.arange(each.first, each.first + each.count) for each in stage.devices])
        shown = tuple(gib(float(values[ranks].mean())) for values in (total.kept, total.received, total.sent))
        rows.setdefault(shown, []).append(index)
    for shown, indices in rows.items():
        table.add_row(_numbers(indices), *shown)
    return table


def _numbers(indices: list[int]) -> str:
    """ "0, 2-4, 7"."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(number_range(run) for run in runs)


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


# The page of ``plan --explain``: every sharding of an operator, or layout of a serving request, and what keeps it out.

MOST_LAYOUTS = 20
"""Layouts that the page shows; the document has all."""

REASONS_SHOWN = 5
"""Layouts whose reason is told in a sentence."""

_CONSTRAINTS = {
    LayoutExcluded.NOTHING: "(the plan)",
    LayoutExcluded.OBJECTIVE: "no better",
    LayoutExcluded.TTFT: "P95 TTFT",
    LayoutExcluded.TPOT: "P95 TPOT",
    LayoutExcluded.LOAD: "load",
    LayoutExcluded.MEMORY: "memory",
    LayoutExcluded.SEARCH: "(not reached)",
}


def print_explanations(console: Console, explained: Sequence[Explanation] | Sequence[LayoutExplanation]) -> None:
    """Print what was explained: operators one by one, layouts in one table."""
    print_layouts(console, [each for each in explained if isinstance(each, LayoutExplanation)])
    for each in explained:
        if isinstance(each, Explanation):
            print_explanation(console, each)


def print_layouts(console: Console, explained: Sequence[LayoutExplanation]) -> None:
    """Print why layouts are not the plan, nearest first."""
    if not explained:
        return
    console.print()
    console.print(plain("Why these layouts are, or are not, the plan", style="bold"))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("layout", overflow="fold")
    for name in ("replicas", "devices"):
        table.add_column(name, justify="right")
    table.add_column("kept out by")
    for name in ("needs", "has", "over"):
        table.add_column(name, justify="right")
    several = len({each.group for each in explained}) > 1
    for each in explained[:MOST_LAYOUTS]:
        layout = f"{each.layout} on {each.group}" if several else each.layout
        counts = (str(each.replicas), str(max(1, each.replicas) * each.devices))
        table.add_row(layout, *counts, _CONSTRAINTS[each.excluded_by], *_needs(each))
    console.print(table)
    if len(explained) > MOST_LAYOUTS:
        console.print(plain(f"{len(explained) - MOST_LAYOUTS} more with --json", style="dim"))
    for each in explained[:REASONS_SHOWN]:
        console.print(Padding(plain(f"{each.layout}: {each.why}"), (0, 0, 0, 2), expand=False))
    console.print(Padding(plain(explained[0].basis, style="dim"), (0, 0, 0, 2), expand=False))


def _needs(each: LayoutExplanation) -> list[str]:
    if each.need is None or each.have is None:
        return ["", "", ""]
    if each.unit == "devices":
        return [f"{each.need:g}", f"{each.have:g}", ""]
    unit = {"requests/s": "/s", "x": ""}.get(each.unit, each.unit)
    figures = [amount(value, unit).strip() for value in (each.need, each.have)]
    return [*figures, f"+{percent(each.excess)}" if each.need > each.have else ""]


def print_explanation(console: Console, explanation: Explanation) -> None:
    """Print the alternatives of one operator, and why the plan has none of them."""
    own = explanation.alternatives[0]
    title = f"Why {explanation.block}/{explanation.operator} is sharded by {own.strategy!r} over tp {explanation.tp}"
    if own.strategy == "replicate":
        title = f"Why {explanation.block}/{explanation.operator} is whole on every rank of tp {explanation.tp}"
    console.print()
    console.print(plain(title, style="bold"))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("sharding", overflow="fold")
    for name in ("rest kept: step", "memory", "block anew: step", "memory"):
        table.add_column(name, justify="right")
    table.add_column("excluded by")
    for alternative in explanation.alternatives:
        excluded = "(the plan)" if alternative.excluded_by is Excluded.NOTHING else alternative.excluded_by.value
        table.add_row(alternative.strategy, *_shown(alternative), excluded)
    console.print(table)
    for alternative in explanation.alternatives[1:]:
        console.print(Padding(plain(f"{alternative.strategy}: {alternative.why}"), (0, 0, 0, 2), expand=False))
    console.print(Padding(plain(explanation.basis, style="dim"), (0, 0, 0, 2), expand=False))


def _shown(alternative: Alternative) -> list[str]:
    if alternative.excluded_by is Excluded.NOTHING and alternative.rest_kept is not None:
        own = alternative.rest_kept
        return [seconds(own.step_time_s), gib(own.peak_memory_bytes), *_differences(alternative.block_anew)]
    return [*_differences(alternative.rest_kept), *_differences(alternative.block_anew)]


def _differences(figures: StepFigures | None) -> list[str]:
    if figures is None:
        return ["", ""]
    step = f"{_sign(figures.step_delta_s)}{seconds(abs(figures.step_delta_s))}"
    return [step, f"{_sign(figures.memory_delta_bytes)}{gib(abs(figures.memory_delta_bytes))}"]


def _sign(difference: float) -> str:
    return "-" if difference < 0 else "+"
