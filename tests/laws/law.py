"""What a law is: a sentence, draws, and the check that fails where a draw breaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True, slots=True)
class Law:
    """A sentence that holds of every answer.

    sentence   as docs/design.md says it
    drawn      what is drawn, by the name of a parameter of ``check``
    check      raises AssertionError where a draw breaks the law
    few, many  draws in the first tier, a few seconds of them, and in the slow one
    always     draws that are checked each time, before all others
    """

    sentence: str
    drawn: Mapping[str, SearchStrategy[Any]]
    check: Callable[..., None]
    few: int
    many: int
    always: Sequence[Mapping[str, Any]] = ()

    def hold(self, draws: int, *, first: int = 0) -> None:
        """Draw so often and check each; ``first`` names other draws, the same ones each time. Raises what the check raises."""
        for each in self.always:
            self.check(**each)
        quick = settings(
            max_examples=draws,
            deadline=None,
            database=None,
            derandomize=first == 0,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        drawn = quick(given(**self.drawn)(self.check))
        (drawn if first == 0 else seed(first)(drawn))()
