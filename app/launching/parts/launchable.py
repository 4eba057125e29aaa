"""The plans that a launcher can start: the checker's rules, read for that launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshwright.costmodels.errors import ExportError
from meshwright.solver.answer.arrangement import chosen
from meshwright.solver.answer.layouts import ByGroup, Layout, Stagewise, Uniform
from meshwright.solver.answer.pipeline_plan import PipelinePlan, with_pipelines
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.choice import LedgerEntry, Unnamed
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.launchers.table import SERVERS
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.problem.search import LEDGER, Search
from meshwright.solver.verify import SpaceRules, Subject
from meshwright.solver.verify.check import check

_MODES = (Recompute.NONE, Recompute.FINE_GRAINED, Recompute.SELECTIVE, Recompute.FULL)


def require_launchable(plan: Plan, request: PlanRequest, launcher: Launcher) -> None:
    """Raise ExportError when the plan is infeasible, broken, or breaks a rule that is not about a predicted figure.

    Recompute modes that differ by stage are let through: a launcher with one mode for all can run the most saving one.
    """
    if not plan.feasible:
        message = None if plan.reason is None else plan.reason.message
        answer = "an infeasible answer" if plan.is_decided else "an undecided answer"
        raise ExportError(f"{answer} has nothing to launch", given=message)
    if isinstance(plan.layout, ByGroup | Stagewise):
        raise ExportError(
            "no launcher runs replicas that differ by node group, or stages that differ in degrees",
            given=f"search.{'batch_shares: by_group' if isinstance(plan.layout, ByGroup) else 'stage_degrees: any'}",
            remedy=f"plan again with search.space: launchable and search.launcher: {launcher.value}",
        )
    search = _launched_search(plan, request.search, launcher)
    asked = replace(request, search=search)
    run = with_one_recompute_mode(plan)
    broken = check(run, asked, space_rules=SpaceRules.OF_ALL_PLANS, subjects=(Subject.PLAN,))
    if broken:
        listed = "; ".join(str(violation) for violation in broken)
        raise ExportError(
            f"{launcher.value} can't launch this plan: {listed}",
            remedy=f"plan again with search.launcher: {launcher.value}, or export to another launcher",
        )


def _launched_search(plan: Plan, asked: Search, launcher: Launcher) -> Search:
    """Return the request's own search, in the launcher's space and wide enough for what the plan chose.

    Launchers do not know what a request restricted: of the search, only their own rules are left to break.
    """
    assert plan.layout is not None
    wider: dict[str, Any] = {
        name: _with_chosen(entry, getattr(asked, name), plan.layout) for name, entry in LEDGER.items() if entry.lists
    }
    engine = SERVERS[launcher].engine if launcher in SERVERS else asked.engine
    return replace(asked, space=Space.LAUNCHABLE, launcher=launcher, engine=engine, system=None, **wider)


def _with_chosen(entry: LedgerEntry, allowed: tuple[Any, ...], layout: Layout) -> tuple[Any, ...]:
    """Return the allowed values of a choice and those that a plan's layout has; as they are where nothing is restricted."""
    place = entry.choice.place
    if place is None or (not allowed and entry.choice.unnamed is Unnamed.ANY):
        return allowed
    values = (value for each in chosen(layout, place) for value in (each if isinstance(each, Mapping) else (each,)))
    return tuple(dict.fromkeys((*allowed, *(value for value in values if value is not None))))


def with_one_recompute_mode(plan: Plan) -> Plan:
    """The plan with the most saving of its stages' recompute modes on all of them."""
    if not isinstance(plan.layout, Uniform):
        return plan
    pipelines = plan.layout.pipelines
    mode = _most_saving(pipelines.stages)
    modules = next((stage.recompute_modules for stage in pipelines.stages if stage.recompute is mode), None)
    stages = tuple(replace(stage, recompute=mode, recompute_modules=modules) for stage in pipelines.stages)
    return with_pipelines(plan, replace(pipelines, stages=stages))


def recompute_mode(plan: PipelinePlan) -> Recompute:
    """The mode that a launcher with one mode for all stages runs."""
    return _most_saving(plan.stages)


def _most_saving(stages: Sequence[Stage]) -> Recompute:
    modes = {stage.recompute for stage in stages}
    # Of fine-grained and selective neither drops all that the other does.
    return Recompute.FULL if {Recompute.FINE_GRAINED, Recompute.SELECTIVE} <= modes else max(modes, key=_MODES.index)


def recompute_differs(plan: PipelinePlan) -> tuple[str, ...]:
    """Return what a launcher loses where stages recompute differently."""
    modes = [stage.recompute.value for stage in plan.stages]
    if len(set(modes)) == 1:
        return ()
    return (
        f"recompute by stage ({', '.join(modes)}): the launcher has one mode for all, so every stage runs "
        f"{recompute_mode(plan).value}, which fits memory and is slower than planned",
    )
