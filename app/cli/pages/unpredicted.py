"""Why rows of a measured table have no prediction, in a terminal."""

from __future__ import annotations

from rich.text import Text

from meshwright.app.text.console import plain
from meshwright.app.text.figures import counted

SHOWN_REASONS = 12


def unpredicted(rows: int, predicted: int, reasons: tuple[tuple[str, int], ...]) -> list[Text]:
    """A line a reason, the most common first, of the rows that were not predicted; none if all were."""
    if rows == predicted:
        return []
    shown = [plain(f"  {n:>5,}  {reason}") for reason, n in reasons[:SHOWN_REASONS]]
    left_out = sum(n for _, n in reasons[SHOWN_REASONS:])
    if left_out:
        shown.append(plain(f"  {left_out:>5,}  for other reasons; --json names every row"))
    return [plain(f"Not predicted, {counted(rows - predicted, 'row')}:"), *shown]
