"""Plans that choose a part of the cluster: in a large free space the launchable plans of simple shape are searched first."""

from __future__ import annotations

from dataclasses import replace

from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import SearchStats
from meshwright.solver.control import OnProgress, Stop, part_of
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.forms.uniform.launchable_inside import NOTE, has_many, simple_parts
from meshwright.solver.training.report.anytime import steps_of
from meshwright.solver.training.report.device_counts import SizedResult, search_sizes, unproven
from meshwright.solver.training.report.plan_report import feasible_plan
from meshwright.solver.training.report.slo import slo_limit_s
from meshwright.solver.training.report.sweep import swept_plans
from meshwright.solver.training.search.search_result import RELATIVE_TIE

SHARE = 1 / 3
"""Share of the time that plans of simple shape may take: what a narrower search finds in a third of it, a wider one must."""


def best_part(request: TrainingRequest, *, stop: Stop, progress: OnProgress) -> Plan | None:
    """The best plan on a part of the cluster; None where none was found that meets the SLO.

    Raises WorkloadError for a cluster of several node groups, or for the objective cost without a price.
    """
    limit_s = slo_limit_s(request)
    simple = _of_simple_shape(request, slo_limit_s=limit_s, stop=part_of(stop, SHARE), progress=progress)
    sized = search_sizes(request, slo_limit_s=limit_s, stop=stop, progress=progress)
    if simple is not None and (sized is None or _value(simple) < _value(sized) * (1 - RELATIVE_TIE)):
        plan = feasible_plan(simple.request, simple.costs, simple.result, sized=simple)
        return replace(
            plan,
            certificate=unproven(request, _value(simple)),
            # Counted are candidates of the declared space: these are among them.
            search=SearchStats(0, 0, 0.0),
            notes=(*plan.notes, NOTE),
        )
    if sized is None:
        return None
    swept = swept_plans(request, slo_limit_s=limit_s, stop=stop, progress=steps_of(progress))
    return feasible_plan(sized.request, sized.costs, sized.result, swept=swept, sized=sized)


def _value(sized: SizedResult) -> float:
    assert sized.certificate.objective is not None
    return sized.certificate.objective


def _of_simple_shape(request: TrainingRequest, *, slo_limit_s: float, stop: Stop, progress: OnProgress) -> SizedResult | None:
    """The best part of the cluster under plans of simple shape, of the first launcher that runs one there."""
    if request.search.space is not Space.FREE or not has_many(request):
        return None
    for part in simple_parts(request.search):
        try:
            inside = replace(request, search=part)
            found = search_sizes(inside, slo_limit_s=slo_limit_s, stop=stop, progress=steps_of(progress))
        except WorkloadError:
            # What the request restricts the free space to is nothing that this launcher runs, or it can't be asked at all,
            # which the search of the free space says in its own words.
            continue
        if found is not None:
            return found
    return None
