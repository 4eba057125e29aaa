"""Bars of shares, drawn in characters."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from meshwright.app.text.console import plain
from meshwright.app.text.figures import percent

WIDTH = 30


@dataclass(frozen=True, slots=True)
class BarRow:
    """A part of a whole: its name, its amount, and the amount as text."""

    name: str
    amount: float
    shown: str


def bar(share: float, width: int = WIDTH) -> Text:
    """A bar filled to a share (over 1 counts as 1)."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    return plain("█" * filled, style="red" if share > 1 else "cyan") + plain("·" * (width - filled), style="dim")


def parts_table(parts: tuple[BarRow, ...], whole: float) -> Table:
    """One line a part: name, bar, amount and share of the whole. Parts of nothing are left out."""
    table = Table.grid(padding=(0, 1))
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column(justify="right")
    for part in parts:
        if part.amount > 0 and whole > 0:
            table.add_row(f"  {part.name}", bar(part.amount / whole), part.shown, percent(part.amount / whole))
    return table
