"""The page of ``plan --explain``: every sharding of an operator, or layout of a serving request, and what keeps it out."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from meshwright.app.text.console import plain
from meshwright.app.text.figures import amount, gib, percent, seconds
from meshwright.solver.serving.explain import Excluded as LayoutExcluded
from meshwright.solver.serving.explain import LayoutExplanation
from meshwright.solver.training.explain import Alternative, Excluded, Explanation, Figures

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


def _differences(figures: Figures | None) -> list[str]:
    if figures is None:
        return ["", ""]
    step = f"{_sign(figures.step_delta_s)}{seconds(abs(figures.step_delta_s))}"
    return [step, f"{_sign(figures.memory_delta_bytes)}{gib(abs(figures.memory_delta_bytes))}"]


def _sign(difference: float) -> str:
    return "-" if difference < 0 else "+"
