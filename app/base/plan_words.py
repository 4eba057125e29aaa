"""The claim of a certificate in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import assert_never

from meshwright.app.base.figures import percent, significant
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.answer.predicted import GIVEN_PLAN, Certificate, Equals, Status
from meshwright.solver.problem.choices import Objective, OperatorSolver
from meshwright.solver.problem.request import PlanRequest, ServingRequest, ServingWorkload, Slo
from meshwright.solver.problem.serving_load import ClosedArrivals, EmpiricalLength, FixedLength, LognormalLength, TraceArrivals


def certificate_in_words(plan: Plan, request: PlanRequest) -> str:
    """Return the claim of the certificate in a sentence; it speaks of the cost model's figures, not of the real machine."""
    certificate = plan.certificate
    space, better = request.search.space.value, _BETTER[request.objective]
    match certificate.status:
        case Status.OPTIMAL:
            return f"Optimal: no plan in the {space} space {better} under this cost model."
        case Status.FEASIBLE if certificate.space == GIVEN_PLAN:
            return "A given plan meets every constraint under this cost model. No search was made: others may be better."
        case Status.FEASIBLE:
            gap = "" if certificate.gap is None else f" by more than {percent(certificate.gap)}"
            return f"Best found: no plan in the {space} space {better}{gap} under this cost model."
        case Status.INFEASIBLE if certificate.space == GIVEN_PLAN:
            return "This plan misses a constraint under this cost model. Of other plans it says nothing: no search was made."
        case Status.INFEASIBLE:
            return f"Proven: no plan in the {space} space meets every constraint under this cost model."
        case Status.UNDECIDED:
            return f"Undecided: whether a plan in the {space} space meets every constraint is not known."
        case _:
            assert_never(certificate.status)


def operators_in_words(certificate: Certificate) -> str:
    """Return the sentence that says which solvers proved the shardings of operators."""
    provers = " and ".join(_PROVER[each] for each in certificate.operator_solvers)
    return f"Operators: every sharding worth trying, proven by {provers}"


_PROVER = {
    OperatorSolver.ELIMINATION: "elimination",
    OperatorSolver.ILP: "an integer linear program in PuLP",
    OperatorSolver.CP_SAT: "CP-SAT of OR-Tools",
}


_BETTER = {
    Objective.THROUGHPUT: "is faster",
    Objective.STEP_TIME: "is faster",
    Objective.DEVICES: "needs fewer devices",
    Objective.COST: "costs less",
    Objective.ENERGY: "takes less energy",
}


# The class of plans that ranking can't tell apart, in words.


def equals_in_words(equals: Equals) -> str:
    """Return the sentence that says how many plans are equal."""
    least = "" if equals.all_found else "at least "
    return f"{least}{equals.count} plans are equal within {percent(equals.within)}, the noise of ranking".capitalize()


# The load at which a serving plan's figures are, in words.


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests a second: the most that a plan for throughput keeps up with, at which its figures are, and those asked for."""

    most: float
    asked: float
    limit: str

    def __str__(self) -> str:
        return f"The page is about {significant(self.most)} requests/s, {self.limit}"


def rates_of(plan: Plan, request: PlanRequest) -> Rates | None:
    """The rates of a plan for throughput, and in words what limits the higher.

    None for other objectives, whose figures are at the rate that was asked, for clients who wait for answers, and
    for plans that were given.
    """
    if not isinstance(request, ServingRequest) or request.objective is not Objective.THROUGHPUT or plan.predicted is None:
        return None
    arrivals = request.workload.arrivals
    if plan.certificate.space == GIVEN_PLAN or isinstance(arrivals, ClosedArrivals):
        return None
    most, asked = plan.predicted.tokens_per_s / mean_output(request.workload), arrivals.requests_per_s
    named = f"where {significant(asked)} were named"
    limit = f"the most at which the targets are kept, {named}."
    if request.slo == Slo(confidence=request.slo.confidence):
        limit = (
            f"the most that the devices keep up with, {named}: no target of latency limits the rate. Give targets, or ask for "
            "the fewest devices (objective devices)."
        )
    return Rates(most, asked, limit)


def run_in_words(plan: Plan, request: PlanRequest) -> str | None:
    """Return how long a training run of so many tokens takes, with its range, and what it costs where devices have prices."""
    tokens, predicted = request.workload.run_tokens, plan.predicted
    if tokens is None or predicted is None:
        return None
    around = predicted.bands.get("tokens_per_s")
    spread = "" if around is None else f" ({days(tokens / around.high)} to {days(tokens / around.low)})"
    size, unit = next((size, unit) for size, unit in _MANY if tokens >= size)
    words = f"A run of {significant(tokens / size)}{unit} tokens takes {days(tokens / predicted.tokens_per_s)}{spread}"
    costs = run_usd(plan, request)
    if costs is None:
        return f"{words}; its cost is unknown: not all devices have a price_per_hour."
    return f"{words} and costs {significant(costs)} USD."


def run_s(plan: Plan, request: PlanRequest) -> float | None:
    """Seconds of the whole training run; None where its tokens are not said, or there is no plan."""
    tokens = request.workload.run_tokens
    return None if tokens is None or plan.predicted is None else tokens / plan.predicted.tokens_per_s


def run_usd(plan: Plan, request: PlanRequest) -> float | None:
    """USD of the whole training run; None where its tokens or the price of a device are not known."""
    tokens, costs = request.workload.run_tokens, None if plan.predicted is None else plan.predicted.cost_per_million_tokens
    return None if tokens is None or costs is None else costs * tokens / 1e6


_DAY_S = 86_400
_MANY = ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"), (1, ""))


def days(seconds: float) -> str:
    """Return a long time in words, from seconds."""
    whole = seconds / _DAY_S
    return f"{significant(whole)} days" if whole >= 1 else f"{significant(24 * whole)} hours"


def mean_output(work: ServingWorkload) -> float:
    """Tokens of an answer, in the mean."""
    if isinstance(work.arrivals, TraceArrivals):
        return fmean(work.arrivals.output_tokens)
    match work.output_tokens:
        case FixedLength(tokens):
            return float(tokens)
        case LognormalLength(mean):
            return mean
        case EmpiricalLength(counts):
            return fmean(counts)
        case None:
            raise ValueError("a load that is no trace has lengths")


# The devices that a change of plans leaves: which ranks of the old plan are lost, in words.


def devices_left(lost: Sequence[str], old: AnsweredRequest, new: AnsweredRequest) -> list[int | None] | None:
    """Return the new rank of each old device when those that are left close ranks; None where nothing is said to be lost.

    ``lost`` names ranks of the old plan: "8" or "8-15". Raises InvalidInputError for anything else.
    """
    if not lost:
        return None
    n_old, n_new = old.request.cluster.n_devices, new.request.cluster.n_devices
    gone = {rank for text in lost for rank in _ranks(text, n_old)}
    left = [rank for rank in range(n_old) if rank not in gone]
    place = {rank: i for i, rank in enumerate(left) if i < n_new}
    return [place.get(rank) for rank in range(n_old)]


def _ranks(text: str, n_devices: int) -> range:
    """The ranks of "8" or "8-15"; raises InvalidInputError for anything else and for ranks that the old cluster lacks."""
    found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text)
    ranks = range(0) if found is None else range(int(found[1]), int(found[2] or found[1]) + 1)
    if not ranks or ranks[-1] >= n_devices:
        raise InvalidInputError("--lost names no ranks of the old plan's cluster", given=text, allowed=f"0 to {n_devices - 1}")
    return ranks
