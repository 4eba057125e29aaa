"""What a law is: a sentence, draws, and the check that fails where a draw breaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True, slots=True)
class Law:
    """A sentence that holds of every answer.

    sentence   as docs/design.md says it
    drawn      what is drawn, by the name of a parameter of ``check``
    check      raises AssertionError where a draw breaks the law
    few, many  draws in the first tier, a few seconds of them, and in the slow one, a minute of them at most
    most       draws of the 20,000 of benchmarks/laws.py
    draw_s     processor time of a mean draw, measured on a core of a server: what is cheap is drawn often
    always     draws that are checked each time, before all others
    """

    sentence: str
    drawn: Mapping[str, SearchStrategy[Any]]
    check: Callable[..., None]
    few: int
    many: int
    most: int
    draw_s: float
    always: Sequence[Mapping[str, Any]] = ()

    def hold(self, draws: int, *, first: int = 0) -> int:
        """Draw so often and check each; ``first`` names other draws, the same ones each time. Raises what the check raises.

        Returns how many were drawn: fewer where there are no more.
        """
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
        drawn = 0

        @wraps(self.check)
        def counted(**draw: Any) -> None:
            nonlocal drawn
            drawn += 1
            try:
                self.check(**draw)
            except BaseException as error:
                # Hypothesis leaves the values out of what it prints under pytest.
                error.add_note(f"the draw: {draw!r}")
                raise

        tried = quick(given(**self.drawn)(counted))
        (tried if first == 0 else seed(first)(tried))()
        return drawn
