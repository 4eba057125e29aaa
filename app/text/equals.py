"""The class of plans that ranking can't tell apart, in words."""

from __future__ import annotations

from meshwright.app.text.figures import percent
from meshwright.solver.answer.predicted import Equals


def equals_in_words(equals: Equals) -> str:
    """Return the sentence that says how many plans are equal."""
    least = "" if equals.all_found else "at least "
    return f"{least}{equals.count} plans are equal within {percent(equals.within)}, the noise of ranking".capitalize()
