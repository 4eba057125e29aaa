"""The page of ``plan --explain``: every sharding of an operator, what it would cost, and what keeps it out."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from app.render.figures import gib, seconds
from solver.training.explain import Alternative, Excluded, Explanation, Figures


def print_explanation(console: Console, explanation: Explanation) -> None:
    """Print the alternatives of one operator, and why the plan has none of them."""
    own = explanation.alternatives[0]
    title = f"Why {explanation.block}/{explanation.operator} is sharded by {own.strategy!r} over tp {explanation.tp}"
    if own.strategy == "replicate":
        title = f"Why {explanation.block}/{explanation.operator} is whole on every rank of tp {explanation.tp}"
    console.print()
    console.print(Text(title, style="bold"))
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
        console.print(Padding(Text(f"{alternative.strategy}: {alternative.why}"), (0, 0, 0, 2), expand=False))
    console.print(Padding(Text(explanation.basis, style="dim"), (0, 0, 0, 2), expand=False))


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
