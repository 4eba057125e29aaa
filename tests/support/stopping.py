"""Limits that end a search at one of its looks at the stopping rule, divided as limits of time are, and what must hold of the
answer whichever look it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from meshwright.solver import api
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import OnProgress, Progress, Stop, ignore_progress
from meshwright.solver.problem.request import PlanRequest

TIE = 1e-9
"""Relative difference of two objectives below which they are the same."""

FIRST_LOOKS = (1, 2, 3, 5, 8, 13, 21)
"""The first looks that every search is ended at."""

MOST_LOOKS = 25
"""Looks that a search is ended at over the whole of it, but for the last two."""


@dataclass
class Looks:
    """The clock of a search that ends at a look: how often any of its rules was asked."""

    so_far: int = 0


@dataclass(frozen=True)
class LookLimit:
    """Ends a search at a look, and at all after it. As with time, what a part of a search takes the whole has no more."""

    at: float
    looks: Looks = field(default_factory=Looks)

    def __call__(self) -> bool:
        """Return True at that look and later."""
        self.looks.so_far += 1
        return self.looks.so_far >= self.at

    def part(self, share: float) -> LookLimit:
        """The limit of a part that may take this share of the looks left."""
        return LookLimit(self.looks.so_far + share * max(0.0, self.at - self.looks.so_far), self.looks)

    def spend(self, work: float) -> None:
        """Nothing: looks are counted, not work."""

    def used(self) -> float:
        """Share of the looks gone."""
        return self.looks.so_far / self.at

    def seconds_left(self) -> float:
        """No clock."""
        return math.inf


SolveUntil = Callable[[Stop, OnProgress], Plan]
"""A search with a stopping rule and a listener of its caller."""


@dataclass(frozen=True)
class Whole:
    """A search that ran to its end: its answer, and how often it asked whether to stop."""

    plan: Plan
    n_looks: int

    def looks(self) -> tuple[int, ...]:
        """Looks to end the search at: evenly over the whole of it, and the last."""
        step = max(1, math.ceil(self.n_looks / MOST_LOOKS))
        return tuple(sorted({*range(step, self.n_looks, step), max(1, self.n_looks - 1), max(1, self.n_looks)}))


def solving(request: PlanRequest) -> SolveUntil:
    """The search of a request by the solver's own door."""
    return lambda stop, progress: api.solve(request, stop=stop, progress=progress)


def whole(solve: SolveUntil) -> Whole:
    """Run a search to its end."""
    limit = LookLimit(math.inf)
    plan = solve(limit, ignore_progress)
    return Whole(plan, limit.looks.so_far)


def assert_answers(solve: SolveUntil, looks: Iterable[int], *, beside: Whole | None = None) -> list[Plan]:
    """Return the answers of a search ended at each of the looks. Assert that each is there, is no worse than any plan that its
    listener was told of before, and claims nothing of which the search that ran to its end says otherwise."""
    found = list[Plan]()
    for at in looks:
        told = list[Plan]()

        def listen(progress: Progress, told: list[Plan] = told) -> None:
            plan = None if progress.incumbent is None else progress.incumbent()
            if plan is not None:
                told.append(plan)

        plan = solve(LookLimit(at), listen)
        place = f"ended at look {at}"
        assert plan.feasible or plan.reason is not None, place
        for each in told:
            assert plan.feasible, f"{place}: a plan was told, and there is none"
            assert _objective(plan) <= _objective(each) * (1.0 + TIE), f"{place}: a better plan was told"
        if beside is not None:
            assert _claims_hold(plan, beside.plan), f"{place}: {plan.certificate} beside {beside.plan.certificate}"
        found.append(plan)
    return found


def _objective(plan: Plan) -> float:
    return math.inf if plan.certificate.objective is None else plan.certificate.objective


def _claims_hold(plan: Plan, best: Plan) -> bool:
    """Return True if a plan's certificate agrees with the best plan."""
    own = plan.certificate
    match own.status:
        case Status.UNDECIDED:
            return True
        case Status.INFEASIBLE:
            return not best.feasible
        case Status.OPTIMAL:
            is_true = abs(_objective(plan) / _objective(best) - 1.0) <= TIE
        case _:
            is_true = _objective(plan) >= _objective(best) * (1.0 - TIE)
    return is_true and (own.bound is None or own.bound <= _objective(best) * (1.0 + TIE))
