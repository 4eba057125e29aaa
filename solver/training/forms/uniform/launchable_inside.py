"""The launchable plans that a search of the free space begins with, so that more freedom is never a worse answer.

Every launchable plan is one of the free space. A plan of simple shape comes first, within a second or two; then the best one of
each launcher is priced again with the free space's kernels; the search of the free space keeps it until it has a better one.
The kernels of the free space are those of the launcher that the request names. Where a plan of this launcher has no such
price, as where it fills up dims that do not divide, it is kept as it is, under a bound that holds for both. A plan of another
launcher, with kernels of its own, is not kept then: nothing that the request asks for runs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from meshwright.costmodels.errors import PlanFileError, WorkloadError
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.answer.layouts import Uniform
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import SearchStats, Status
from meshwright.solver.control import OnProgress, Progress, Stop
from meshwright.solver.problem.choice import Unnamed
from meshwright.solver.problem.choices import BatchShares, GroupOrder, Launcher, Space, StageDegrees, TpOverlap
from meshwright.solver.problem.declared.cp_keys import CpKeys
from meshwright.solver.problem.declared.recompute_modules import ANY, OPERATORS
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import LEDGER, Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import compute_bound_s, evaluate_decision
from meshwright.solver.training.forms.uniform.prediction import decision_of
from meshwright.solver.training.report.device_counts import UNITS
from meshwright.solver.training.report.equals import RANKING_NOISE
from meshwright.solver.training.report.plan_report import feasible_plan, space_text
from meshwright.solver.training.search.best_first import RELATIVE_TIE, SearchResult, Solved, decision_tables, search
from meshwright.solver.training.space.candidates import families

SHARE = 0.6
"""Share of the time that launchable searches may take: beside all forms a third of the whole, as what launchable searches find
in a third of the time, those of wider spaces must."""

FEW_CANDIDATES = 5_000
"""Candidates of a free space that is searched in seconds: one that runs to its end needs no plan to begin with."""

NOTE = "this is the best launchable plan found: the search of the free space has shown no better one"


@dataclass(frozen=True, slots=True)
class Inside:
    """The best launchable plan, certified as one of the free space, and its decision there, where it is as fast; ``bound_s`` is
    proven of all launchable plans."""

    plan: Plan
    solved: Solved | None
    bound_s: float


def launchable_inside(request: TrainingRequest, costs: TrainingCosts, *, stop: Stop, progress: OnProgress) -> Inside | None:
    """The best plan that any launcher is found to run before ``stop``; None where there is none.

    ``costs`` are those of the free space.
    """
    floor_s, bound_s = compute_bound_s(request), math.inf
    simple = _of_simple_shape(request, costs, floor_s=floor_s, stop=stop, progress=progress)
    best: Plan | None = None
    # Launchers are searched as if no simple plan were known: what a finished search answers does not depend on it.
    for launcher in _launchers(request.search.launcher):
        limit_s = min(request.longest_step_s, _step_s(best))
        part = launchable_part(request.search, launcher)
        told = progress if _has_the_kernels(request, launcher) else _without_plans(progress)
        found, proven_s = _best_of(request, part, limit_s=limit_s, floor_s=floor_s, stop=stop, progress=told)
        if found is None or _is_of_the_space(request, costs, found, launcher):
            best, bound_s = found or best, min(bound_s, max(floor_s, proven_s))
    if _step_s(best) > _step_s(simple) * (1 + RELATIVE_TIE):
        best = simple
    if best is None:
        return None
    return Inside(best, _as_free(request, costs, best), min(bound_s, _step_s(best)))


def _step_s(plan: Plan | None) -> float:
    return math.inf if plan is None or plan.certificate.objective is None else plan.certificate.objective


def _has_the_kernels(request: TrainingRequest, launcher: Launcher) -> bool:
    """Return True if a launcher runs the kernels of the one that the request names."""
    return TRAINERS[launcher].implementation == TRAINERS[request.search.launcher].implementation


def _is_of_the_space(request: TrainingRequest, costs: TrainingCosts, plan: Plan, launcher: Launcher) -> bool:
    """Return True if a launcher's plan is one of the free space: by its kernels, or as fast with those of the free space."""
    return _has_the_kernels(request, launcher) or _as_free(request, costs, plan) is not None


def _without_plans(listener: OnProgress) -> OnProgress:
    """A listener who is told how far a search is, and not of its plans."""
    return lambda progress: listener(replace(progress, best=None, bound=None, incumbent=None))


def _of_simple_shape(
    request: TrainingRequest, costs: TrainingCosts, *, floor_s: float, stop: Stop, progress: OnProgress
) -> Plan | None:
    """The best of the `simple_parts` of the first launcher that has a plan there."""
    for part in simple_parts(request.search):
        told = progress if _has_the_kernels(request, part.launcher) else _without_plans(progress)
        plan, _ = _best_of(request, part, limit_s=request.longest_step_s, floor_s=floor_s, stop=stop, progress=told)
        if plan is not None and _is_of_the_space(request, costs, plan, part.launcher):
            # A search that ends with its first plan has not told of it.
            _tell(progress, plan)
            return plan
    return None


def _tell(listener: OnProgress, plan: Plan) -> None:
    listener(Progress(1, 1, _step_s(plan), plan.certificate.bound, "a plan of simple shape", lambda: plan))


def simple_parts(search: Search) -> Iterator[Search]:
    """The part of a search that each launcher runs, its own first, where choices that are open are closed: micro-batches of one
    sequence, 1F1B, whole products, rings. It is searched in about a second."""
    few = replace(
        search,
        microbatch=search.microbatch or (1,),
        schedules=search.schedules or (Schedule.ONE_F_ONE_B,),
        tp_overlap=search.tp_overlap or (TpOverlap.EXPOSED,),
        cp_keys=search.cp_keys or (CpKeys.RING,),
    )
    for launcher in _launchers(search.launcher):
        yield launchable_part(few, launcher)


def _launchers(first: Launcher) -> Iterator[Launcher]:
    """Launchers that train, the request's own first."""
    asked = (launcher for launcher, rules in TRAINERS.items() if launcher is first or not rules.is_within_others)
    yield from sorted(asked, key=lambda launcher: launcher is not first)


def launchable_part(search: Search, launcher: Launcher) -> Search:
    """The part of a search that a launcher can run: choices that are closed unless a request opens them are closed."""
    closed: dict[str, Any] = {
        name: ()
        for name, entry in LEDGER.items()
        if entry.choice.unnamed is Unnamed.DEFAULT
        and isinstance(entry.choice.published, tuple)
        and entry.choice.published[0] in (getattr(search, name) or ())
    }
    if {ANY, OPERATORS} & {*search.recompute_modules}:
        closed["recompute_modules"] = ()
    return replace(
        search,
        space=Space.LAUNCHABLE,
        launcher=launcher,
        stage_degrees=StageDegrees.SAME,
        batch_shares=BatchShares.EVEN,
        group_order=GroupOrder.GIVEN,
        idle_groups=(),
        operator_splits=(),
        layer_kinds=1,
        **closed,
    )


def _best_of(
    request: TrainingRequest, part: Search, *, limit_s: float, floor_s: float, stop: Stop, progress: OnProgress
) -> tuple[Plan | None, float]:
    """The best plan of a launchable part within ``limit_s``, with a bound of the free space, and the part's own bound."""
    inside = replace(request, search=part)
    costs = TrainingCosts(inside)

    def described(found: SearchResult) -> Plan | None:
        if found.best is None or found.best.value > limit_s * (1 - RELATIVE_TIE):
            return None
        plan = feasible_plan(inside, costs, found)
        objective, bound = found.best.value, min(found.best.value, floor_s)
        gap = (objective - bound) / objective
        certificate = replace(plan.certificate, status=Status.FEASIBLE, bound=bound, gap=gap, space=space_text(request))
        # Counted are candidates of the declared space: these are among them.
        return replace(plan, certificate=certificate, search=SearchStats(0, 0, 0.0), notes=(*plan.notes, NOTE))

    listener = progress

    def tell(progress: Progress) -> None:
        best = progress.best if progress.best is not None and progress.best <= limit_s else None
        bound, incumbent = (floor_s, None) if best is None else (min(best, floor_s), progress.incumbent)
        listener(replace(progress, best=best, bound=bound, incumbent=incumbent))

    try:
        found = search(
            inside,
            costs,
            stop=stop,
            progress=tell,
            limit=limit_s,
            describe=described,
            reach=RANKING_NOISE.within,
            bundled=True,
        )
    except WorkloadError:
        # What the request restricts the free space to is nothing that this launcher runs.
        return None, math.inf
    return described(found), math.inf if found.bound is None else found.bound


def _as_free(request: TrainingRequest, costs: TrainingCosts, plan: Plan) -> Solved | None:
    """The plan as a decision of the free space; None where that has none that is as fast and fits, as where a launcher fills
    up dims that do not divide."""
    assert isinstance(plan.layout, Uniform) and plan.certificate.objective is not None
    try:
        decision = decision_of(request, costs, plan.layout.pipelines, optimizer=plan.layout.placement.optimizer)
    except PlanFileError:
        return None
    cost = evaluate_decision(decision, decision_tables(decision, costs))
    if not cost.fits or cost.step_time_s > plan.certificate.objective * (1 + RELATIVE_TIE):
        return None
    return Solved(decision, cost, cost.step_time_s)


def certified(inside: Inside, free: SearchResult) -> Plan:
    """The launchable plan under what searches of both spaces have proven."""
    given = inside.plan.certificate
    assert given.objective is not None and given.bound is not None
    free_s = math.inf if free.bound is None and free.complete else free.bound or 0.0
    bound_s = max(given.bound, min(given.objective, inside.bound_s, free_s))
    proven = bound_s >= given.objective * (1 - RELATIVE_TIE)
    certificate = replace(
        given,
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        bound=given.objective if proven else bound_s,
        gap=0.0 if proven else (given.objective - bound_s) / given.objective,
    )
    stats = SearchStats(free.n_candidates, free.n_solved, 0.0)
    return replace(inside.plan, certificate=certificate, search=stats)


def begins_with_launchable(request: TrainingRequest) -> bool:
    """Return True if the search of a request begins with launchable plans: its space is free and large."""
    return request.search.space is Space.FREE and request.objective not in UNITS and has_many(request)


def has_many(request: TrainingRequest) -> bool:
    """Return True if the space of a request has more candidates than are searched in seconds."""
    # Cuts of sequences take long to balance: most requests have enough candidates without them.
    whole = replace(request, search=replace(request.search, token_slices=()))
    return any(_counts_many(asked) for asked in ((whole,) if whole == request else (whole, request)))


def _counts_many(request: TrainingRequest) -> bool:
    n_candidates = 0
    for family in families(request):
        n_candidates += family.n_candidates
        if n_candidates > FEW_CANDIDATES:
            return True
    return False
