"""The plans that a launcher can start: the checker's rules, read for that launcher."""

from __future__ import annotations

from dataclasses import replace

from meshwright.costmodels.errors import ExportError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.launchers.table import SERVERS
from meshwright.solver.problem.request import PlanRequest, Search
from meshwright.solver.training.forms.stagewise.record import is_stagewise
from meshwright.solver.verify import Rule, SpaceRules, check

_MODES = (Recompute.NONE, Recompute.FINE_GRAINED, Recompute.SELECTIVE, Recompute.FULL)

_ABOUT_FIGURES = frozenset(
    {
        Rule.IN_FLIGHT,
        Rule.WEIGHTS,
        Rule.GRADIENTS,
        Rule.OPTIMIZER,
        Rule.ACTIVATIONS,
        Rule.TRANSIENT,
        Rule.OVERHEAD,
        Rule.KV_CACHE,
        Rule.CAPACITY,
        Rule.HOST_MEMORY,
        Rule.PEAK_MEMORY,
        Rule.STAGE_TIME,
        Rule.STEP_TIME,
        Rule.BREAKDOWN,
        Rule.TOKENS,
        Rule.MFU,
        Rule.COST,
        Rule.BANDS,
        Rule.UTILISATION,
        Rule.SLO,
    }
)
"""Rules about predicted figures, which no launcher reads."""


def require_launchable(plan: Plan, request: PlanRequest, launcher: Launcher) -> None:
    """Raise ExportError when the plan is infeasible, broken, or breaks a rule of the launcher.

    Recompute modes that differ by stage are let through: a launcher with one mode for all can run the most saving one.
    """
    if not plan.feasible:
        message = None if plan.reason is None else plan.reason.message
        raise ExportError("an infeasible answer has nothing to launch", given=message)
    if plan.shares is not None or is_stagewise(plan):
        raise ExportError(
            "no launcher runs replicas that differ by node group, or stages that differ in degrees",
            given="search.batch_shares: by_group" if plan.shares is not None else "search.stage_degrees: any",
            remedy=f"plan again with search.space: launchable and search.launcher: {launcher.value}",
        )
    if plan.switched is not None:
        raise ExportError(
            "no launcher changes the layout of a server between prompts and answers",
            given="plan.switched",
            remedy="plan again with search.modes [aggregated]",
        )
    search = Search(
        space=Space.LAUNCHABLE,
        launcher=launcher,
        engine=SERVERS[launcher].engine if launcher in SERVERS else request.search.engine,
        modes=request.search.modes,
        worker_kinds=max(1, len(plan.kinds)),
        cp=_degrees_of_shared_prompts(plan),
        etp=() if plan.axes is None or plan.axes.etp is None else (plan.axes.etp,),
        optimizers=() if plan.optimizer is None else (plan.optimizer,),
        gradients=tuple({stage.gradients for stage in plan.stages}),
        tp_overlap=(plan.tp_overlap,),
        token_slices=(max(1, len(plan.token_slices)),),
        offload_optimizer=tuple({stage.offload.optimizer for stage in plan.stages}),
        offload_weights=tuple({stage.offload.weights for stage in plan.stages}),
        offload_gradients=tuple({stage.offload.gradients for stage in plan.stages}),
        offload_optimizer_to=tuple({stage.offload.optimizer_to for stage in plan.stages}),
        offload_weights_to=tuple({stage.offload.weights_to for stage in plan.stages}),
        offload_activations=tuple({stage.offload.activations for stage in plan.stages}),
    )
    asked = replace(request, search=search)
    broken = [
        v
        for v in check(with_one_recompute_mode(plan), asked, space_rules=SpaceRules.OF_ALL_PLANS)
        if v.rule not in _ABOUT_FIGURES
    ]
    if broken:
        listed = "; ".join(str(violation) for violation in broken)
        raise ExportError(
            f"{launcher.value} can't launch this plan: {listed}",
            remedy=f"plan again with search.launcher: {launcher.value}, or export to another launcher",
        )


def _degrees_of_shared_prompts(plan: Plan) -> tuple[int, ...]:
    """Degrees of cp of a serving plan's workers."""
    axes = [plan.axes, None if plan.prefill is None else plan.prefill.axes, *(kind.axes for kind in plan.kinds)]
    return tuple(each.cp for each in axes if each is not None) if plan.kind == "serving" else ()


def with_one_recompute_mode(plan: Plan) -> Plan:
    """The plan with the most saving of its stages' recompute modes on all of them."""
    if not plan.stages:
        return plan
    modes = {stage.recompute for stage in plan.stages}
    mode = max(modes, key=_MODES.index)
    if {Recompute.FINE_GRAINED, Recompute.SELECTIVE} <= modes:
        # Neither of the two drops all that the other does.
        mode = Recompute.FULL
    return replace(plan, stages=tuple(replace(stage, recompute=mode) for stage in plan.stages))


def recompute_mode(plan: Plan) -> Recompute:
    """The mode that a launcher with one mode for all stages runs."""
    return with_one_recompute_mode(plan).stages[0].recompute


def recompute_differs(plan: Plan) -> tuple[str, ...]:
    """Return what a launcher loses where stages recompute differently."""
    modes = [stage.recompute.value for stage in plan.stages]
    if len(set(modes)) == 1:
        return ()
    return (
        f"recompute by stage ({', '.join(modes)}): the launcher has one mode for all, so every stage runs "
        f"{recompute_mode(plan).value}, which fits memory and is slower than planned",
    )
