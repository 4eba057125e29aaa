"""The requests that serving plans are made for, and those that are refused before any search."""

from __future__ import annotations

from meshwright.costmodels.errors import ModelError, WorkloadError
from meshwright.costmodels.model.memory_law import DEFAULT_RISK
from meshwright.costmodels.model.operators import AttentionMask, OperatorKind
from meshwright.solver.problem.choices import DEFAULT_LAUNCHER, Objective, ServingMode, Space
from meshwright.solver.problem.launchers.server import PromptSharing
from meshwright.solver.problem.launchers.table import ENGINES, SERVERS
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import ScheduleArrivals
from meshwright.solver.serving.engines.engine_rules import require_routable
from meshwright.solver.serving.engines.layouts import Tokens, has_format, layouts, serving_precision
from meshwright.solver.serving.forms.table import FORMS

_OF_ONE_RATE = (Objective.THROUGHPUT, Objective.ENERGY)
"""Objectives whose figures are at one rate: the highest that is sustained, or that which idle power is shared by."""


def require_servable(request: ServingRequest) -> None:
    """Refuse what no layout of this space can mean, before any search.

    Raises WorkloadError for search restrictions and objectives of training, ModelError for models this space can't serve,
    ClusterError when no device of the cluster computes in the workload's precision.
    """
    if not any(has_format(group, request) for group in request.cluster.groups):
        device, precision = request.cluster.groups[0].node.device, serving_precision(request.workload)
        device.peak(precision.weights.computed_in(device))
        device.peak(precision.activations)
    if request.objective is Objective.STEP_TIME:
        raise WorkloadError(
            "the objective does not go with a serving workload",
            given=request.objective.value,
            allowed=", ".join(o.value for o in (Objective.DEVICES, Objective.THROUGHPUT, Objective.COST, Objective.ENERGY)),
        )
    if isinstance(request.workload.arrivals, ScheduleArrivals) and request.objective in _OF_ONE_RATE:
        raise WorkloadError(
            "this objective is of one rate, and a schedule has several",
            given=request.objective.value,
            allowed="objective devices or cost; or arrivals poisson, at the rate of one interval",
        )
    for form in FORMS:
        form.refuse(request)
    _require_serving_search(request.search)
    require_routable(request.model, request.workload.experts)
    if not request.model.is_chain:
        raise ModelError("only models whose blocks form a chain can be served", given=request.model.name)
    for block in request.model.blocks:
        for operator in block.operators:
            if operator.kind is OperatorKind.ATTENTION and operator.mask is AttentionMask.FULL:
                raise ModelError(
                    "only causal attention can generate token by token",
                    given=f"{block.name}/{operator.name}: full",
                )
    _require_prefill_layout(request)


def _require_prefill_layout(request: ServingRequest) -> None:
    """Refuse degrees of cp that no prefill worker can have."""
    cp = request.search.cp
    if cp and 1 not in cp and next(layouts(request, Tokens.SHARED), None) is None:
        raise WorkloadError(
            "no worker shares prompts over so many ranks",
            given=f"search.cp {list(cp)} with search.engine {request.search.engine.value}",
            allowed="1; of search.engine sglang divisors of a node, for models without recurrent states",
        )


def _require_serving_search(search: Search) -> None:
    set_for_training = {
        "cp": search.cp and 1 not in search.cp and not _may_share_prompts(search),
        "microbatch": search.microbatch,
        "recompute": search.recompute,
        "zero_stages": search.zero_stages,
    }
    given = [name for name, value in set_for_training.items() if value]
    if search.risk != DEFAULT_RISK or search.price_risk is not None:
        raise WorkloadError(
            "search.risk is of training plans: a serving engine sizes its cache by the memory that it finds free at start",
            given=search.risk if search.price_risk is None else f"price_risk {search.price_risk}",
            allowed=f"{DEFAULT_RISK}, which has no effect",
            remedy="set cluster.memory_reserve for a margin of your own, slo.confidence for targets",
        )
    if given:
        sharing = ", ".join(engine for engine, rules in ENGINES.items() if rules.prompt_sharing is not PromptSharing.NONE)
        raise WorkloadError(
            "search restrictions of training do not go with a serving workload",
            given=given,
            allowed=f"dp (replicas), tp, pp, ep, attention_dp, kvp; cp of engine {sharing} or of prefill workers",
        )
    if search.space is Space.LAUNCHABLE and search.launcher not in (*SERVERS, DEFAULT_LAUNCHER):
        raise WorkloadError(
            "the launcher does not serve", given=search.launcher.value, allowed=", ".join(server.value for server in SERVERS)
        )


def _may_share_prompts(search: Search) -> bool:
    return ServingMode.DISAGGREGATED in search.modes or ENGINES[search.engine].prompt_sharing is not PromptSharing.NONE
