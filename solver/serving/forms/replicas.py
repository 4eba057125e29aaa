"""Equal replicas that do both phases, as a form of a serving plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwright.costmodels.errors import ModelError, WorkloadError
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.serving.speculation import DraftMethod
from meshwright.solver.answer.layouts import Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Reason, RunnerUp, SearchStats
from meshwright.solver.problem.choices import FrontierScope, Objective, ServingMode
from meshwright.solver.problem.launchers.table import ENGINES
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.forms.form import Asked, Earlier, Form, FormSearch, Misfit, floor_of
from meshwright.solver.serving.promise.certificates import objective_of, predicted_certificate, searched_certificate
from meshwright.solver.serving.promise.promised import KeptPlan
from meshwright.solver.serving.promise.question import Found, ServingSearchResult
from meshwright.solver.serving.workers.answer import (
    feasible_plan,
    frontier,
    kept_plans,
    leftover_notes,
    refusal_notes,
    runners_up,
)
from meshwright.solver.serving.workers.cheapest import cheapest, choose_roomiest, least_energy, of_equal_cost
from meshwright.solver.serving.workers.given import given_candidate, judged, one_plan_stats
from meshwright.solver.serving.workers.goodput import choose_roomiest_goodput, largest_goodput, most_answers, user_tokens_per_s
from meshwright.solver.serving.workers.reasons import memory_shortfall
from meshwright.solver.serving.workers.simulation import ServingSimulation, described, simulated_replicas

# The search over equal replicas that do both phases, and the plan that it makes.


def search(asked: Asked) -> FormSearch | None:
    """Return the search over replicas, None where the request does not allow them."""
    return ReplicasSearch(asked) if ServingMode.AGGREGATED in asked.request.search.modes else None


class ReplicasSearch(FormSearch):
    """Equal replicas for one request: what was asked of them, and what was found."""

    def __init__(self, asked: Asked):
        self._asked, self._request, self._question = asked, asked.request, asked.question
        self._evaluator = asked.question.evaluator
        self._result = ServingSearchResult()

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

    def _so_far(self, now: ServingSearchResult) -> Plan | None:
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
        if best is None or self._result.stopped or not self._asked.is_enough(best.load):
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


# The cases in which replicas are planned, and those in which they are refused.


def refuse(request: ServingRequest) -> None:
    """Refuse what replicas that draft tokens are not planned for.

    Raises WorkloadError, or ModelError for a model with recurrent states.
    """
    search = request.search
    if request.workload.speculation is None:
        return
    if search.frontier is FrontierScope.SWEPT:
        raise WorkloadError(
            "throughput against interactivity is not drawn with speculative decoding",
            given=search.frontier.value,
            allowed=f"search.frontier {FrontierScope.VISITED.value}; or no workload.speculation",
        )
    method, drafts = request.workload.speculation.draft.method, ENGINES[search.engine].drafts
    if method not in drafts:
        raise WorkloadError(
            f"{search.engine.value} has no drafts of this method",
            given=method.value,
            allowed=", ".join(each.value for each in DraftMethod if each in drafts),
        )
    if search.pp and 1 not in search.pp:
        raise WorkloadError(
            "speculative decoding is planned without pipeline stages, as vLLM runs it",
            given=f"search.pp {list(search.pp)}",
            allowed="search.pp with 1; or no workload.speculation",
        )
    if search.cp and 1 not in search.cp:
        raise WorkloadError(
            "speculative decoding is planned without ranks that share prompts",
            given=f"search.cp {list(search.cp)}",
            allowed="search.cp with 1; or no workload.speculation",
        )
    for block in request.model.blocks:
        for operator in block.operators:
            if operator.kind in (OperatorKind.SCAN, OperatorKind.CONVOLUTION):
                raise ModelError(
                    "speculative decoding is not planned for recurrent states, which rejected tokens would have to leave again",
                    given=f"{block.name}/{operator.name}",
                    allowed="models of attention alone; or no workload.speculation",
                )


def space(request: ServingRequest) -> str:
    """Return the words of a certificate on what the form adds to a request's space: none, its proof says it."""
    return ""


# Replicas of a plan that was given, predicted anew.


def predict(request: ServingRequest, plan: Plan, replicas: Replicas) -> Plan | Misfit:
    """The plan's replicas and batch limits with every figure predicted anew.

    Or the reason, when it does not fit in memory or misses a target. Objective throughput: figures are at the
    plan's goodput, else at the request's arrival rate. Raises PlanFileError when the plan does not belong to the request.
    """
    evaluator, candidate, share = given_candidate(request, replicas.workers)
    engine = candidate.engine
    if candidate.limits.kv_tokens < evaluator.longest_request:
        reason = memory_shortfall(
            engine, step_tokens=candidate.step_tokens, sequences=candidate.sequences, tokens=evaluator.longest_request
        )
        return Misfit(reason, one_plan_stats(evaluator))
    found = judged(request, plan.predicted, evaluator, candidate, share)
    if isinstance(found, Reason):
        return Misfit(found, one_plan_stats(evaluator))
    certificate = predicted_certificate(request, found, evaluator)
    return feasible_plan(
        request, found, evaluator=evaluator, certificate=certificate, stats=one_plan_stats(evaluator), notes=()
    )


# Replicas of a plan that was given, simulated.


def simulate(request: ServingRequest, layout: Replicas) -> ServingSimulation:
    """Simulate replicas under the request's load; one stands for all that are alike."""
    evaluator, whole, line, alike = simulated_replicas(request, layout)
    return described(evaluator, whole, line, alike=alike)


FORM = Form(
    "replicas", Replicas, refuse=refuse, space=space, search=search, predict=predict, simulate=simulate, takes_turns=True
)
