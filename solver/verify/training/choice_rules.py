"""The checker's rules of declared choices (`solver.problem.declared`), a section each: what a request, a published planner and
a launcher allow of it, and what follows from it for ranks and stages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.choices import OVER_MEGATRON_CORE, Launcher, Recompute
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.violation import Rule, Violation

Asked = tuple[str, object, Collection[object]]
"""Where a value stands in a plan, the value, and the values that a request allows; none: all."""

Refusal = tuple[bool, str, str]
"""Whether a rule is broken, where in a plan, and by what."""


_IN_PAIRS = ("dualpipe", "dualpipe-v")
"""Schedules that run forwards beside backwards unasked."""

_WHOLE_BACKWARD = ("1f1b", "gpipe", "eager-1f1b", "interleaved-1f1b")
"""Schedules that run the backward pass of a layer in one piece."""


def asked_of_pipelines(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Asked]:
    """Yield the values that a plan chose, where plans of its degrees differ by them."""
    if _has_orders(plan):
        yield "rank_order", plan.pipelines.rank_order.value, request.search.rank_order or ("pp-outermost",)
    if plan.axes.ep > 1 and plan.schedule not in _IN_PAIRS:
        asked = request.search.expert_overlap or ("exposed",)
        yield "expert_overlap", plan.pipelines.expert_overlap or "exposed", asked


def published_refusals(plan: PipelinePlan) -> Iterator[Refusal]:
    """Yield what no published planner searches."""
    order = plan.pipelines.rank_order.value
    yield order != "pp-outermost", "rank_order", order
    yield hides_exchanges(plan), "expert_overlap", "batch"


def launcher_refusals(plan: PipelinePlan, launcher: Launcher) -> Iterator[Refusal]:
    """Yield what a launcher has no setting for.

    Replicas whose ranks lie together: of Megatron-Core alone (use_tp_pp_dp_mapping), where experts have as many replicas as all
    else; initialize_model_parallel asserts one dp for both of its generators of ranks.
    """
    axes = plan.axes
    apart = _has_orders(plan) and _are_replicas_together(plan)
    is_megatron = launcher in OVER_MEGATRON_CORE
    yield apart and not is_megatron, "rank_order", "dp outermost; it has pp outermost alone"
    of_experts = axes.dp * axes.cp * axes.tp / ((axes.etp or axes.tp) * axes.ep)
    given = f"dp outermost with dp {axes.dp}, {of_experts:g} of experts, for which it has groups without any, too"
    yield apart and is_megatron and of_experts != axes.dp, "rank_order", given
    refused = "exchanges of experts under another micro-batch; it shows them"
    yield hides_exchanges(plan) and launcher is not Launcher.MEGATRON_LM, "expert_overlap", refused


def hides_exchanges(plan: PipelinePlan) -> bool:
    """Return True if a plan asks for exchanges of experts under another micro-batch."""
    return plan.pipelines.expert_overlap == "batch"


def expert_overlap_violations(plan: PipelinePlan) -> Iterator[Violation]:
    """Something is exchanged, and passes of another micro-batch can run beside it: interleaved, or without a pipeline, with two
    micro-batches a stage. No whole layer runs again."""
    suits = plan.axes.pp == 1 or plan.schedule == "interleaved-1f1b"
    suits = suits and plan.axes.ep > 1 and plan.microbatch.count >= 2 * plan.axes.pp
    if hides_exchanges(plan) and not (suits and all(stage.recompute is not Recompute.FULL for stage in plan.stages)):
        given = f"batch, with ep {plan.axes.ep}, pp {plan.axes.pp}, {plan.schedule}, {plan.microbatch.count} micro-batches"
        yield Violation(Rule.STAGES, "plan.expert_overlap", given)


def unlike_stage_violations(plan: PipelinePlan) -> Iterator[Violation]:
    """Stages that differ have no replicas whose ranks could lie together."""
    order = plan.pipelines.rank_order.value
    if hides_exchanges(plan):
        yield Violation(Rule.STAGES, "plan.expert_overlap", "batch; stages that differ show their exchanges")
    if order != "pp-outermost":
        yield Violation(Rule.DEVICES, "plan.rank_order", f"{order}; stages that differ lie one behind the other")


def ranks_in_order(plan: PipelinePlan, index: int) -> list[int]:
    """Ranks that a stage should hold: those whose digit of pp is its number, tp x cp being the last digit.

    Ranks are numbered in one of Megatron's orders: with pp outermost stage i holds the i-th of pp equal runs of ranks; with dp
    outermost each replica has a run, of which stage i holds the i-th of pp equal parts.
    """
    axes = plan.axes
    inner = axes.tp * axes.cp
    if _are_replicas_together(plan):
        return [(replica * axes.pp + index) * inner + rank for replica in range(axes.dp) for rank in range(inner)]
    return [(index * axes.dp + replica) * inner + rank for replica in range(axes.dp) for rank in range(inner)]


def order_in_words(plan: PipelinePlan) -> str:
    """Return the order in which `ranks_in_order` numbers ranks."""
    return plan.pipelines.rank_order.value


def _has_orders(plan: PipelinePlan) -> bool:
    """Return False if the ranks of a stage and those of a replica are the same in every order."""
    return plan.axes.pp > 1 and plan.axes.dp > 1


def _are_replicas_together(plan: PipelinePlan) -> bool:
    return plan.pipelines.rank_order.value == "dp-outermost"


def asked_of_stage(stage: Stage, where: str, request: TrainingRequest) -> Iterator[Asked]:
    """Yield the values that a stage of a plan chose. One that recomputes some layers does not recompute the others."""
    if stage.recompute_layers is not None:
        yield f"{where}.recompute_layers", stage.recompute_layers, request.search.recompute_layers
        yield f"{where}.recompute", Recompute.NONE, request.search.recompute


def stage_refusals(plan: PipelinePlan, launcher: Launcher) -> Iterator[Refusal]:
    """Yield what a launcher has no setting for. Megatron-LM has --recompute-num-layers."""
    some = any(stage.recompute_layers is not None for stage in plan.stages)
    refused = "some layers of a stage recomputed; it recomputes all of them or none"
    yield some and launcher not in OVER_MEGATRON_CORE, "stages", refused


def stage_choice_violations(plan: PipelinePlan, request: TrainingRequest, index: int) -> Iterator[Violation]:
    """Some layers of each part recomputed whole, and others not: of a chain, whose activations all stay, as many in each, by a
    schedule whose backward pass is whole."""
    stage, where = plan.stages[index], f"plan.stages[{index}].recompute_layers"
    number = stage.recompute_layers
    if number is None:
        return
    suits = plan.axes.pp == 1 or (plan.schedule in _WHOLE_BACKWARD and not plan.token_slices)
    suits = suits and request.model.is_chain and not stage.offload.activations
    if not suits or stage.recompute is not Recompute.FULL or not 0 < number < len(request.model.layers):
        given = f"{number} layers under recompute {stage.recompute.value}, pp {plan.axes.pp}, {plan.schedule}"
        yield Violation(Rule.STAGES, where, f"{given}; it is some of the layers of each part under recompute full")
    if any(other.recompute_layers != number for other in plan.stages):
        yield Violation(Rule.STAGES, where, f"{number} layers of each part; all stages have the same number")


def recomputed_of_part(stage: Stage, layers: Sequence[int]) -> Sequence[int]:
    """Return the layers under the stage's recompute mode, of those of a part that can be."""
    return layers[: stage.recompute_layers]
