"""The solver's questions: what is the best plan for this request, what does this plan cost, and why is it as it is?

Every plan is checked by the independent checker before it is returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from meshwright.costmodels.calibration.calibration import calibrations_in_force
from meshwright.costmodels.errors import PlanFileError, PlanRejectedError, WorkloadError
from meshwright.solver.answer.cluster_time import in_model_time
from meshwright.solver.answer.layouts import Workers
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import unfinished_search
from meshwright.solver.control import Incumbent, OnProgress, Progress, Stop, ignore_progress
from meshwright.solver.planners import planner_of
from meshwright.solver.problem.choices import Improvements
from meshwright.solver.problem.request import PlanRequest, ServingRequest, TrainingRequest
from meshwright.solver.serving import ServingSimulation
from meshwright.solver.serving.explain import LayoutExplanation
from meshwright.solver.serving.trials import ServingPlan, ServingTrial, candidate_of, ordered_trials, serving_candidates
from meshwright.solver.serving.workers.given import CacheRoom
from meshwright.solver.serving.workers.given import cache_room as room_of_workers
from meshwright.solver.suggestions import (
    BoundedAsking,
    said_of_none,
    solved_suggestions,
    surer_suggestions,
)
from meshwright.solver.training.explain import Explanation
from meshwright.solver.training.planner import predict_training
from meshwright.solver.training.report.equals import RANKING_NOISE
from meshwright.solver.training.report.trials import Trial, training_trials
from meshwright.solver.verify.check import check


def solve(request: PlanRequest, *, stop: Stop, progress: OnProgress) -> Plan:
    """The best plan of the request's space, checked; or an infeasible answer with its reason.

    ``digest`` is empty and ``search.seconds`` 0: names and clocks belong to the caller. Raises InvalidInputError for a
    request that can't be planned at all, and PlanRejectedError if the checker refuses the solver's own plan. Where nothing
    fits, the reason's remedies are solved changes of the request; where it asks for improvements, so are its suggestions.
    """
    plan = _solved(request, stop=stop, progress=progress)
    if not plan.is_decided or (plan.feasible and request.search.improvements is Improvements.UNASKED):
        return plan
    own, tried = plan if plan.feasible else None, list[Plan]()

    def changed(other: PlanRequest, counted: BoundedAsking) -> Plan:
        tried.append(_solved(other, stop=counted, progress=counted.note))
        return tried[-1]

    advice = planner_of(request).advise(request, plan, changed, stop)
    reached, work, within = advice.reached, advice.work, RANKING_NOISE.within if own is None else None
    found = solved_suggestions(advice.changes, changed, reached, work=work, stop=stop, better_than=own, within=within)
    if plan.reason is None:
        if advice.is_tight and advice.surer:
            found = (*found, *surer_suggestions(plan, advice.surer, advice.beside, changed, reached, work=work, stop=stop))
        return replace(plan, suggestions=found)
    remedies = tuple(each.in_words for each in found) or (said_of_none(tried, is_stopped=stop()),)
    reason = replace(plan.reason, remedies=remedies)
    return replace(plan, suggestions=found, reason=reason)


def _solved(request: PlanRequest, *, stop: Stop, progress: OnProgress) -> Plan:
    """The plan of a request, checked, or the reason why there is none."""
    asked = in_model_time(request)
    with calibrations_in_force(request.calibrations):
        plan = planner_of(asked).plan(asked, stop, _checked(asked, request, progress))
        violations = check(plan, asked)
    if violations:
        listed = "; ".join(f"{v.rule} at {v.where}: {v.message}" for v in violations[:5])
        raise PlanRejectedError(f"the checker refused the plan ({len(violations)} violations): {listed}")
    return _told(plan, request)


def undecided(request: PlanRequest, *, considered: int, remedies: tuple[str, ...]) -> Plan:
    """The answer of a search that was ended from outside after so many candidates, without a plan, its question open."""
    reason = unfinished_search(considered, looked_for="a plan that meets every constraint", remedies=remedies)
    with calibrations_in_force(request.calibrations):
        return planner_of(request).infeasible(request, reason, considered)


def _told(plan: Plan, request: PlanRequest) -> Plan:
    """The plan in the cluster's time."""
    return planner_of(request).told(plan, request)


def _checked(asked: PlanRequest, request: PlanRequest, listener: OnProgress) -> OnProgress:
    """The listener of a request, to whom no plan is shown that the checker refuses; ``asked`` is in the cost model's time."""

    def incumbent_of(given: Incumbent) -> Plan | None:
        plan = given()
        return None if plan is None or check(plan, asked) else _told(plan, request)

    def tell(progress: Progress) -> None:
        if progress.incumbent is not None:
            progress = replace(progress, incumbent=partial(incumbent_of, progress.incumbent))
        listener(progress)

    return tell


def simulate(request: PlanRequest, plan: Plan) -> ServingSimulation:
    """The given serving plan under the request's load: percentiles, and queue and utilisation over time.

    Raises WorkloadError for a training request, PlanFileError when the plan does not belong to the request, InfeasibleError
    when it does not fit in memory.
    """
    simulated = planner_of(request).simulate
    if simulated is None:
        raise WorkloadError("only serving can be simulated", given=request.workload.kind, allowed="a serving workload")
    with calibrations_in_force(request.calibrations):
        return simulated(request, plan)


def trials(request: TrainingRequest, plan: Plan, *, most: int, stop: Stop, progress: OnProgress) -> tuple[Trial, ...]:
    """Plans to run for a request one after another, its own plan among them, in the order that leaves the least regret.

    Every one is checked; raises PlanFileError for an infeasible plan, PlanRejectedError if the checker refuses one.
    """
    if not plan.feasible:
        raise PlanFileError("an infeasible request has nothing to try", given=plan.kind)
    asked = in_model_time(request)
    with calibrations_in_force(request.calibrations):
        own = predict_training(asked, plan)
        found = training_trials(asked, own, most=most, stop=stop, progress=progress)
        for trial in found:
            violations = check(replace(trial.plan, certificate=replace(trial.plan.certificate, bound=None)), asked)
            if violations and trial.plan is not own:
                raise PlanRejectedError(f"the checker refused a trial: {violations[0].rule}: {violations[0].message}")
    return tuple(replace(trial, plan=_told(trial.plan, request)) for trial in found)


def serving_trials(
    request: ServingRequest, plan: Plan, *, most: int, has_kept: Callable[[ServingPlan], bool | None], stop: Stop
) -> tuple[ServingTrial, ...]:
    """Serving plans to run for a request one after another, its own plan among them, those left out that have run.

    ``has_kept`` says of a plan that has run whether it kept its targets, None of others. Every plan is checked; raises
    PlanFileError for an infeasible plan, PlanRejectedError if the checker refuses one.
    """
    if not plan.feasible:
        raise PlanFileError("an infeasible request has nothing to try", given=plan.kind)
    found = serving_candidates(request, plan, solve=lambda other: _solved(other, stop=stop, progress=ignore_progress))
    candidates = [candidate_of(request, each.plan, has_kept=has_kept(each)) for each in found]
    return ordered_trials(found, candidates, most=most)


def predict(request: PlanRequest, plan: Plan) -> Plan:
    """The given plan with its figures predicted anew; infeasible, with the reason, if it breaks memory or the SLO.

    Raises PlanFileError when the plan does not belong to the request.
    """
    with calibrations_in_force(request.calibrations):
        planner = planner_of(request)
        return planner.told(planner.predict(in_model_time(request), plan), request)


def cache_room(request: ServingRequest, workers: Workers) -> CacheRoom:
    """Return the room for caches of a serving plan's workers, whatever their load; raises PlanFileError for no such layout."""
    with calibrations_in_force(request.calibrations):
        return room_of_workers(request, workers)


def require_named(request: PlanRequest, name: str) -> None:
    """Refuse the name of what no plan of the request has, before anything is solved; raises PlanFileError."""
    planner_of(request).require(request, name)


def explain(request: PlanRequest, plan: Plan, name: str) -> tuple[Explanation, ...] | tuple[LayoutExplanation, ...]:
    """Return why what has this name is as it is: of training the costs of other shardings of an operator, one explanation for
    each block that has it; of serving why layouts are not the plan, "layouts" for all of them.

    Raises PlanFileError for a name that nothing has and for a plan without training stages.
    """
    with calibrations_in_force(request.calibrations):
        return planner_of(request).explain(request, plan, name)
