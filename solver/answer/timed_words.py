"""Sentences with figures of time in them, which are said again when those are told in another time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from meshwright.costmodels.units import OverTime


@dataclass(frozen=True, slots=True)
class TimedFigure:
    """A figure in the cost model's time.

    form      its format, as of `format`
    over      whether it grows with all times, or shrinks
    promised  whether it is what is promised with the SLO's confidence, rather than what is expected
    """

    value: float
    form: str
    over: OverTime = OverTime.GROWS
    promised: bool = False

    def __str__(self) -> str:
        return format(self.value, self.form)

    def told(self, scale: float, promised: float) -> TimedFigure:
        """The figure where expected times are ``scale`` and promised ones ``promised`` times the cost model's."""
        value = self.over.scaled(self.value, promised if self.promised else scale)
        return TimedFigure(value, self.form, self.over, self.promised)


def step_seconds(value: float, form: str = ".4g", *, promised: bool = False) -> TimedFigure:
    """Seconds in a sentence."""
    return TimedFigure(value, form, promised=promised)


class TimedWords(str):
    """A text, and the parts that it was made of: words and figures of time. To all readers it is a text."""

    parts: tuple[str | TimedFigure, ...]

    def __new__(cls, *parts: str | TimedFigure) -> Self:
        """The text of the parts, one behind the other; a part may be such a text itself."""
        made = super().__new__(cls, "".join(map(str, parts)))
        made.parts = tuple(inner for part in parts for inner in (part.parts if isinstance(part, TimedWords) else (part,)))
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return TimedWords, self.parts

    def told(self, scale: float, promised: float) -> TimedWords:
        """The text with its figures as `TimedFigure.told` tells them."""
        return TimedWords(*(part if isinstance(part, str) else part.told(scale, promised) for part in self.parts))
