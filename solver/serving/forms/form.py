"""The protocol of a form of a serving plan, by which planning asks all forms alike."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from meshwright.costmodels.queueing.load import Load
from meshwright.solver.answer.layouts import ServingLayout
from meshwright.solver.answer.plan import InteractivityPoint, Plan
from meshwright.solver.answer.predicted import Reason, RunnerUp, SearchStats
from meshwright.solver.control import Stop
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import EngineBuilder
from meshwright.solver.serving.promise.promised import KeptPlan
from meshwright.solver.serving.promise.question import Question
from meshwright.solver.serving.workers.simulation import ServingSimulation

OwnLayout = TypeVar("OwnLayout", bound=ServingLayout)

SHOWN = 5
"""Runners-up that a plan names."""


@dataclass(frozen=True, eq=False)
class Asked:
    """The request, as all forms are asked about it.

    question   about equal workers that do both phases, of which every form is made
    builder    of their engines
    space      the words of a certificate on the plans that the request allows
    """

    request: ServingRequest
    question: Question
    builder: EngineBuilder
    stop: Stop
    space: str

    def is_enough(self, load: float) -> bool:
        """Return True if a load that is kept is the one asked for: of goodput, at least that."""
        return self.request.objective is not Objective.THROUGHPUT or load >= self.question.load


@dataclass(frozen=True, slots=True)
class Earlier:
    """The findings of the forms before one.

    objective   of the best plan, infinite where there is none
    at_most     cost above which no plan is looked for
    stats       the work until now
    """

    objective: float
    at_most: float
    stats: SearchStats


class FormSearch(ABC):
    """One form in the search for the best plan. Forms are searched one after another, each for what beats those before."""

    @property
    def worth_a_look(self) -> float:
        """Return the cost above which plans of other forms are not worth a look, infinite where this form says nothing."""
        return math.inf

    @abstractmethod
    def search(self, earlier: Earlier) -> None:
        """Look for a plan that is better than those of the forms before."""

    @property
    @abstractmethod
    def objective(self) -> float:
        """Return the objective of what was found; infinite where nothing beats the forms before."""

    def choose_roomiest(self) -> None:
        """Of plans as good as the best take the roomiest. Asked of the form that leads when all are searched."""
        return

    @property
    @abstractmethod
    def floor(self) -> float:
        """Return what no plan of this form that was not found is below; infinite where all were looked at."""

    @property
    @abstractmethod
    def is_undecided(self) -> bool:
        """Return True if a stopped search may have missed a plan."""

    @property
    def considered(self) -> int:
        """Return how many candidates were looked at."""
        return 0

    def notes(self) -> tuple[str, ...]:
        """Return notes on what is refused at any rate."""
        return ()

    @abstractmethod
    def plan(self, others: Sequence[FormSearch], *, stats: SearchStats, notes: Sequence[str]) -> Plan | None:
        """Return the plan that was found, with the bound and the runners-up that ``others`` leave; None where there is none
        that is enough."""

    def beaten(self, why: str) -> tuple[RunnerUp, ...]:
        """Return the plans of this form that another form's plan beats, nearest first."""
        return ()

    def kept(self) -> tuple[KeptPlan, ...]:
        """Return the plans of this form that were met and keep the promise at the load asked for, the best one first."""
        return ()

    def why_infeasible(self) -> Reason | None:
        """Return why no plan keeps the promise, where this form knows more than equal workers do."""
        return None

    def steady_points(self, load: Load) -> Iterator[InteractivityPoint]:
        """Yield points of throughput of a device against tokens per second of a user, beside those of single workers."""
        yield from ()

    def user_tokens_per_s(self) -> float | None:
        """Return the tokens per second of a user of what was found; None of a form that is not drawn."""
        return None


def floor_of(searches: Sequence[FormSearch]) -> float:
    """Return what no plan that several searches missed is below."""
    return min((search.floor for search in searches), default=math.inf)


def beaten_of(searches: Sequence[FormSearch], why: str) -> tuple[RunnerUp, ...]:
    """Return the plans that several searches found and another plan beats, those of the last form first."""
    return tuple(plan for search in reversed(searches) for plan in search.beaten(why))


@dataclass(frozen=True, slots=True)
class Form(Generic[OwnLayout]):
    """A form of a serving plan, and what is done with it.

    layout     the type of its part of a plan
    refuse     raises for a request that asks for the form beside what it is not planned for
    space      the words that it adds to those on the plans that a request allows
    search     its search for one request; None where the request does not allow the form
    predict    the plan with every figure of a given layout predicted anew, or why it does not keep the promise
    simulate   what requests see of a given layout
    takes_turns   whether a router may deal requests to its workers
    """

    name: str
    layout: type[OwnLayout]
    refuse: Callable[[ServingRequest], None]
    space: Callable[[ServingRequest], str]
    search: Callable[[Asked], FormSearch | None]
    predict: Callable[[ServingRequest, Plan, OwnLayout], Plan | Misfit]
    simulate: Callable[[ServingRequest, OwnLayout], ServingSimulation]
    takes_turns: bool = False


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a given layout does not keep the promise, and the work of finding out."""

    reason: Reason
    stats: SearchStats
