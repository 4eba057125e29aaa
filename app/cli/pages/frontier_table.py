"""The frontier as a table: plans that no other beats in speed, memory left, devices, cost and energy at once."""

from __future__ import annotations

from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from meshwright.app.text.bars import bar
from meshwright.app.text.console import plain
from meshwright.app.text.figures import gib, significant
from meshwright.solver.answer.frontier import FrontierPoint
from meshwright.solver.answer.plan import Plan

MAX_ROWS = 8
"""Rows that the page shows; the document has all."""

_Point = TypeVar("_Point")

SPEED_WIDTH = 10
"""Columns of the bar that compares speeds."""


def frontier_parts(plan: Plan) -> list[RenderableType]:
    """The table with its title; nothing where the plan is the only one on it."""
    if len(plan.frontier) < 2:
        return []
    fastest = max(point.tokens_per_s for point in plan.frontier)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("devices", justify="right")
    table.add_column("tokens/s", justify="right")
    table.add_column("")
    for column in ("memory left", "USD/M tokens", "kJ a step"):
        table.add_column(column, justify="right")
    shown = spread_points(plan.frontier)
    for point in shown:
        table.add_row(
            f"{point.devices:,}", significant(point.tokens_per_s), bar(point.tokens_per_s / fastest, SPEED_WIDTH), *_rest(point)
        )
    left = len(plan.frontier) - len(shown)
    title = plain("No plan beats these in all respects", style="bold")
    return [Group(title, table, *([plain(f"{left} more in the plan document", style="dim")] if left else []))]


def spread_points(points: tuple[_Point, ...]) -> list[_Point]:
    """Points evenly over the list, its ends among them."""
    if len(points) <= MAX_ROWS:
        return list(points)
    return [points[round(i * (len(points) - 1) / (MAX_ROWS - 1))] for i in range(MAX_ROWS)]


def _rest(point: FrontierPoint) -> list[str]:
    headroom, cost, energy = point.memory_headroom_bytes, point.cost_per_million_tokens, point.energy_per_step_j
    return [
        "" if headroom is None else gib(headroom),
        "" if cost is None else f"{cost:.3f}",
        "" if energy is None else significant(energy / 1e3),
    ]
