"""Changes of a request that has no plan, each of which was solved: what would help, with the figures that it reaches.

Whoever knows a kind of request lists its changes as ladders: changes of one thing, the smallest first. Of each ladder the first
that has a plan is suggested. Work is limited by counts, so the same request gets the same suggestions on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.reason import Suggestion
from meshwright.solver.control import Stop
from meshwright.solver.problem.request import PlanRequest

MOST_ASKED = 4000
"""Times that the search of one change may ask whether to stop, once for each node and part of one."""

MOST_ASKED_IN_ALL = 16_000
"""The same of all changes of a request together."""


@dataclass(frozen=True, slots=True)
class Change:
    """A request with something changed."""

    words: str
    set: Mapping[str, str]
    request: PlanRequest


class Counted:
    """A rule that ends a search when it was asked so often, or when the rule of the whole ends it."""

    def __init__(self, stop: Stop, most: int):
        self._stop, self.left = stop, most

    def __call__(self) -> bool:
        """Return True if the search is to stop now."""
        self.left -= 1
        return self.left < 0 or self._stop()


def solved_suggestions(
    ladders: Iterable[Sequence[Change]],
    solve: Callable[[PlanRequest, Stop], Plan],
    reached: Callable[[Plan], str],
    *,
    stop: Stop,
) -> tuple[Suggestion, ...]:
    """Return of each ladder the first change with a plan; ``reached`` says what a plan reaches. Changes that can't be planned
    at all, and those whose search ends undecided, are passed over."""
    found, left = [], MOST_ASKED_IN_ALL
    for ladder in ladders:
        for change in ladder:
            if left <= 0 or stop():
                break
            counted = Counted(stop, min(MOST_ASKED, left))
            before = counted.left
            try:
                plan = solve(change.request, counted)
            except InvalidInputError:
                continue
            finally:
                left -= before - max(0, counted.left) + 1
            if plan.feasible and plan.certificate.objective is not None:
                figures = (plan.certificate.objective, plan.certificate.unit)
                found.append(Suggestion(change.words, change.set, reached(plan), *figures))
                break
    return tuple(found)
