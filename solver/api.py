"""The solver's questions: what is the best plan for this request, what does this plan cost, and why is it as it is?

Every plan is checked by the independent checker before it is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from meshwright.costmodels.calibration.calibration import calibrations_in_force
from meshwright.costmodels.errors import PlanFileError, PlanRejectedError, WorkloadError
from meshwright.solver.answer.cluster_time import confident_factor, in_cluster_time, in_model_time, law_of
from meshwright.solver.answer.layouts import Workers
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import SearchStats, unfinished_search
from meshwright.solver.control import Incumbent, OnProgress, Progress, Stop, ignore_progress
from meshwright.solver.problem.choices import Improvements
from meshwright.solver.problem.request import PlanRequest, ServingRequest, TrainingRequest
from meshwright.solver.serving import ServingSimulation, plan_serving, predict_serving, simulate_serving
from meshwright.solver.serving.changes import is_tight as tight_serving
from meshwright.solver.serving.changes import (
    reached_by_serving,
    serving_changes,
    serving_improvements,
    surer_beside,
    surer_targets,
)
from meshwright.solver.serving.explain import LayoutExplanation, explain_layouts
from meshwright.solver.serving.nearest import among_nearest
from meshwright.solver.serving.planning import infeasible_serving
from meshwright.solver.serving.trials import ServingPlan, ServingTrial, candidate_of, ordered_trials, serving_candidates
from meshwright.solver.serving.workers.given import CacheRoom
from meshwright.solver.serving.workers.given import cache_room as room_of_workers
from meshwright.solver.suggestions import (
    RESCUE_WORK,
    SERVING_WORK,
    TRAINING_WORK,
    BoundedAsking,
    RequestChange,
    said_of_none,
    solved_suggestions,
    surer_suggestions,
)
from meshwright.solver.training.explain import Explanation
from meshwright.solver.training.explain import explain as explain_sharding
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.training.report.changes import is_tight as tight_training
from meshwright.solver.training.report.changes import (
    reached_by,
    safer_beside,
    safer_risk,
    training_changes,
    training_improvements,
)
from meshwright.solver.training.report.equals import RANKING_NOISE
from meshwright.solver.training.report.plan_report import infeasible_plan as infeasible_training
from meshwright.solver.training.report.plan_report import promised_step_s, slo_reason
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
    changes: Iterable[Iterable[RequestChange]]
    own, tried = plan if plan.feasible else None, list[Plan]()

    def changed(other: PlanRequest, counted: BoundedAsking) -> Plan:
        tried.append(_solved(other, stop=counted, progress=counted.note))
        return tried[-1]

    if isinstance(request, TrainingRequest):
        reached, work, tight = reached_by, TRAINING_WORK, tight_training(plan)
        changes = training_improvements(request) if plan.reason is None else training_changes(request, plan.reason)
        surer, others = safer_risk(request), safer_beside
    else:
        work = SERVING_WORK if plan.reason is None else RESCUE_WORK
        reached, tight = reached_by_serving, tight_serving(plan)
        bounded = partial(changed, counted=BoundedAsking(stop, work.change))
        if plan.reason is None:
            changes = serving_improvements(request)
        else:
            changes = among_nearest(serving_changes(request, plan.reason, bounded))
        surer, others = surer_targets(request), surer_beside
    within = RANKING_NOISE.within if own is None else None
    found = solved_suggestions(changes, changed, reached, work=work, stop=stop, better_than=own, within=within)
    if plan.reason is None:
        if tight and surer:
            found = (*found, *surer_suggestions(plan, surer, others, changed, reached, work=work, stop=stop))
        return replace(plan, suggestions=found)
    remedies = tuple(each.in_words for each in found) or (said_of_none(tried, is_stopped=stop()),)
    reason = replace(plan.reason, remedies=remedies)
    return replace(plan, suggestions=found, reason=reason)


def _solved(request: PlanRequest, *, stop: Stop, progress: OnProgress) -> Plan:
    """The plan of a request, checked, or the reason why there is none."""
    asked = in_model_time(request)
    with calibrations_in_force(request.calibrations):
        if isinstance(asked, TrainingRequest):
            plan = plan_training(asked, stop=stop, progress=_checked(asked, request, progress))
        else:
            plan = plan_serving(asked, stop=stop, progress=_checked(asked, request, progress))
        violations = check(plan, asked)
    if violations:
        listed = "; ".join(f"{v.rule} at {v.where}: {v.message}" for v in violations[:5])
        raise PlanRejectedError(f"the checker refused the plan ({len(violations)} violations): {listed}")
    return _told(plan, request)


def undecided(request: PlanRequest, *, considered: int, remedies: tuple[str, ...]) -> Plan:
    """The answer of a search that was ended from outside after so many candidates, without a plan, its question open."""
    reason = unfinished_search(considered, looked_for="a plan that meets every constraint", remedies=remedies)
    with calibrations_in_force(request.calibrations):
        if isinstance(request, TrainingRequest):
            return infeasible_training(request, reason, n_candidates=considered, n_solved=0)
        return infeasible_serving(request, reason, SearchStats(considered, 0, 0.0))


def _told(plan: Plan, request: PlanRequest) -> Plan:
    """The plan in the cluster's time; where it breaks a target, with the reason in that time."""
    told, law = in_cluster_time(plan, request), law_of(request)
    if told.reason is None or not isinstance(request, TrainingRequest):
        return told
    step_s = promised_step_s(told.reason, request)
    if step_s is None:
        return told
    scale = 1.0 if law is None else law.scale
    reason = slo_reason(request, step_s * scale, factor=confident_factor(request) / scale)
    return replace(told, reason=reason or told.reason)


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
    if not isinstance(request, ServingRequest):
        raise WorkloadError("only serving can be simulated", given=request.workload.kind, allowed="a serving workload")
    with calibrations_in_force(request.calibrations):
        return simulate_serving(request, plan)


def trials(request: TrainingRequest, plan: Plan, *, most: int, stop: Stop, progress: OnProgress) -> tuple[Trial, ...]:
    """Plans to run for a request one after another, its own plan among them, in the order that leaves the least regret.

    Every one is checked; raises PlanFileError for an infeasible plan, PlanRejectedError if the checker refuses one.
    """
    if not plan.feasible:
        raise PlanFileError("an infeasible request has nothing to try", given=plan.kind)
    asked = in_model_time(request)
    assert isinstance(asked, TrainingRequest), "bringing targets into another time keeps the kind of a request"
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
        asked = in_model_time(request)
        if isinstance(asked, TrainingRequest):
            return _told(predict_training(asked, plan), request)
        return predict_serving(asked, plan)


def cache_room(request: ServingRequest, workers: Workers) -> CacheRoom:
    """Return the room for caches of a serving plan's workers, whatever their load; raises PlanFileError for no such layout."""
    with calibrations_in_force(request.calibrations):
        return room_of_workers(request, workers)


def explain_serving(request: ServingRequest, plan: Plan, name: str) -> tuple[LayoutExplanation, ...]:
    """Why layouts of a serving request are not its plan, feasible or not; ``name`` is a layout's, or "layouts" for all.

    Raises PlanFileError for a name that no layout has.
    """
    with calibrations_in_force(request.calibrations):
        return explain_layouts(request, plan, name)


def explain(request: PlanRequest, plan: Plan, operator: str) -> tuple[Explanation, ...]:
    """Return the costs of other shardings of an operator in a training plan, one explanation for each block that has it.

    Raises PlanFileError for an operator that the model lacks and for a plan without training stages.
    """
    if not isinstance(request, TrainingRequest):
        raise PlanFileError("only training plans that were found have shardings to explain", given=f"{plan.kind} plan")
    with calibrations_in_force(request.calibrations):
        return explain_sharding(request, plan, operator)
