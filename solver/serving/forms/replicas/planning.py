"""The search over equal replicas that do both phases, and the plan that it makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import RunnerUp, SearchStats
from meshwright.solver.problem.choices import Objective, ServingMode
from meshwright.solver.serving.forms.form import Asked, Earlier, FormSearch, floor_of
from meshwright.solver.serving.promise.certificates import objective_of, searched_certificate
from meshwright.solver.serving.promise.kept import KeptPlan
from meshwright.solver.serving.promise.question import Found, SearchResult
from meshwright.solver.serving.workers.answer import (
    feasible_plan,
    frontier,
    kept_plans,
    leftover_notes,
    refusal_notes,
    runners_up,
)
from meshwright.solver.serving.workers.cheapest import cheapest, of_equal_cost
from meshwright.solver.serving.workers.goodput import choose_roomiest_goodput, largest_goodput
from meshwright.solver.serving.workers.interactivity import user_tokens_per_s
from meshwright.solver.serving.workers.least_energy import least_energy
from meshwright.solver.serving.workers.most_answers import most_answers
from meshwright.solver.serving.workers.roomiest import choose_roomiest


def search(asked: Asked) -> FormSearch | None:
    """Return the search over replicas, None where the request does not allow them."""
    return ReplicasSearch(asked) if ServingMode.AGGREGATED in asked.request.search.modes else None


class ReplicasSearch(FormSearch):
    """Equal replicas for one request: what was asked of them, and what was found."""

    def __init__(self, asked: Asked):
        self._asked, self._request, self._question = asked, asked.request, asked.question
        self._evaluator = asked.question.evaluator
        self._result = SearchResult()

    def search(self, earlier: Earlier) -> None:
        """Look for the best replicas, none of them dearer than is worth a look."""
        self._question = replace(self._question, at_most=earlier.at_most, describe=self._so_far)
        match self._request.objective:
            case Objective.THROUGHPUT if self._evaluator.traffic.is_closed:
                self._result = most_answers(self._question)
            case Objective.THROUGHPUT:
                self._result = largest_goodput(self._question)
            case Objective.ENERGY:
                self._result = least_energy(self._question)
            case _:
                self._result = cheapest(self._question)

    def _so_far(self, now: SearchResult) -> Plan | None:
        """The plan of the best so far, of which nothing is proven yet."""
        if now.best is None or not self._asked.is_enough(now.best.load):
            return None
        stats = SearchStats(candidates=now.considered, evaluated=self._evaluator.simulations, seconds=0.0)
        return self._plan(now.best, bound=0.0, stats=stats, notes=())

    @property
    def objective(self) -> float:
        """Return the objective of the best replicas."""
        best = self._result.best
        return math.inf if best is None else objective_of(self._request, best, self._evaluator)

    def choose_roomiest(self) -> None:
        """Of replicas as good as the best take the roomiest; those of least energy are one."""
        best = self._result.best
        if best is None or self._result.stopped:
            return
        if self._request.objective is Objective.THROUGHPUT and self._evaluator.traffic.is_closed:
            # The search itself takes the roomiest of equal rates.
            return
        if self._request.objective is Objective.THROUGHPUT:
            choose_roomiest_goodput(self._question, self._result)
        elif self._request.objective in (Objective.DEVICES, Objective.COST):
            choose_roomiest(self._question, self._result, of_equal_cost(self._question, best))

    def kept(self) -> tuple[KeptPlan, ...]:
        """Return those that were met and keep the promise, the best one first."""
        found = self._result
        beaten = [each for each in found.beaten if self._asked.is_enough(each.load)]
        return kept_plans(self._request, replace(found, beaten=beaten), self._evaluator)

    @property
    def floor(self) -> float:
        """Return the bound of a stopped search."""
        return self._result.bound if self._result.stopped else math.inf

    @property
    def is_undecided(self) -> bool:
        """Return True if the search was stopped."""
        return self._result.stopped

    @property
    def considered(self) -> int:
        """Return how many batch limits were looked at."""
        return self._result.considered

    def notes(self) -> tuple[str, ...]:
        """Return notes on engines that are refused at any rate."""
        return refusal_notes(self._result.refused)

    def plan(self, others: Sequence[FormSearch], *, stats: SearchStats, notes: Sequence[str]) -> Plan | None:
        """The plan of the best replicas."""
        best = self._result.best
        if best is None or not self._asked.is_enough(best.load):
            return None
        bound = min(self._result.bound, floor_of(others))
        plan = self._plan(best, bound=bound, stats=stats, notes=notes)
        beaten = runners_up(self._request, self._result, self._evaluator)
        return replace(plan, runners_up=beaten, frontier=frontier(self._result, self._evaluator))

    def _plan(self, found: Found, *, bound: float, stats: SearchStats, notes: Sequence[str]) -> Plan:
        return feasible_plan(
            self._request,
            found,
            evaluator=self._evaluator,
            certificate=searched_certificate(self._request, found, self._evaluator, bound=bound, space=self._asked.space),
            stats=stats,
            notes=(*notes, *leftover_notes(self._request, found.devices)),
        )

    def beaten(self, why: str) -> tuple[RunnerUp, ...]:
        """Return the best replicas with those that they beat, each with its own words."""
        result = self._result
        every = replace(result, beaten=[*result.beaten, *([result.best] if result.best else [])])
        return runners_up(self._request, every, self._evaluator)

    def user_tokens_per_s(self) -> float | None:
        """Return the tokens per second of a user of the best replicas, whose batches wait for prompts."""
        assert self._result.best is not None, "its plan is the answer"
        return user_tokens_per_s(self._result.best.measured, self._evaluator, phases=ServingMode.AGGREGATED)
