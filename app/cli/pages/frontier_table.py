"""The frontier as a table: plans that no other beats in speed, memory left, devices, cost and energy at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from meshwright.app.text.bars import bar
from meshwright.app.text.console import plain
from meshwright.app.text.figures import gib, significant
from meshwright.solver.answer.frontier import FrontierPoint
from meshwright.solver.answer.plan import Plan

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
