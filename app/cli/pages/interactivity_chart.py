"""Throughput of a device against tokens per second of a user, as a chart in characters and a table below it."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.app.cli.pages.frontier_table import spread_points
from meshwright.app.text.console import plain
from meshwright.app.text.figures import significant
from meshwright.solver.answer.frontier import Interactivity
from meshwright.solver.answer.plan import Plan

WIDTH, HEIGHT = 56, 12
"""Columns and lines of the chart's inside."""

POINT, CHOSEN = "●", "◆"

CAVEAT = (
    "Replicas that prefill and decode, their batches always full: means of a steady state without a queue. They are no "
    "promises of percentiles, and the SLO is not asked of them."
)


def interactivity_parts(plan: Plan) -> list[RenderableType]:
    """The chart with its title, what it is of, and a table of its points; nothing where the plan has none."""
    drawn = plan.interactivity
    if drawn is None:
        return []
    user, device = significant(drawn.plan_tokens_per_s_per_user), significant(drawn.plan_tokens_per_s_per_device)
    own = f"{CHOSEN} this plan at its load: {device} tokens/s a device, {user} tokens/s to a user at its mean batch"
    return [
        Group(
            plain("Output tokens/s of a device (up) against tokens/s of a user (right)", style="bold"),
            *_chart(drawn),
            plain(own),
            plain(f"{POINT} {CAVEAT}", style="dim"),
        ),
        _table(drawn),
    ]


def _chart(drawn: Interactivity) -> list[Text]:
    """Lines of the chart, both axes from 0; the plan's mark is never hidden."""
    at_user = [*(point.tokens_per_s_per_user for point in drawn.points), drawn.plan_tokens_per_s_per_user]
    at_device = [*(point.tokens_per_s_per_device for point in drawn.points), drawn.plan_tokens_per_s_per_device]
    widest, highest = max(at_user), max(at_device)
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]
    for index, (user, device) in enumerate(zip(at_user, at_device, strict=True)):
        row, column = round((1.0 - device / highest) * (HEIGHT - 1)), round(user / widest * (WIDTH - 1))
        cells[row][column] = CHOSEN if index == len(drawn.points) else POINT
    labels = {0: significant(highest), HEIGHT - 1: "0"}
    margin = max(len(label) for label in labels.values())
    lines = [plain(f"{labels.get(row, ''):>{margin}} │{''.join(line)}") for row, line in enumerate(cells)]
    right = significant(widest)
    return [*lines, plain(f"{'':>{margin}} └{'─' * WIDTH}"), plain(f"{'':>{margin}}  0{right:>{WIDTH - 1}}")]


def _table(drawn: Interactivity) -> RenderableType:
    shown = spread_points(drawn.points)
    several = len({point.group for point in drawn.points}) > 1
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("tokens/s/device", "tokens/s/user", "batch", "tokens a step"):
        table.add_column(column, justify="right")
    table.add_column("replica")
    for point in shown:
        table.add_row(
            significant(point.tokens_per_s_per_device),
            significant(point.tokens_per_s_per_user),
            f"{point.batch:,.0f}",
            f"{point.max_num_batched_tokens:,}",
            f"{point.group}: {point.summary}" if several else point.summary,
        )
    left = len(drawn.points) - len(shown)
    return Group(table, *([plain(f"{left} more in the plan document", style="dim")] if left else []))
