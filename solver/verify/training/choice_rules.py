"""The checker's rules of declared choices (`solver.problem.declared`), a section each: what a request, a published planner and
a launcher allow of it, and what follows from it for ranks and stages."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.choices import OVER_MEGATRON_CORE, Launcher, Recompute, Space, StageDegrees
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.rules import between_experts, picked_dims
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
    if plan.axes.cp > plan.axes.ulysses:
        yield "cp_keys", plan.pipelines.cp_keys.value, request.search.cp_keys


def published_refusals(plan: PipelinePlan) -> Iterator[Refusal]:
    """Yield what no published planner searches."""
    order = plan.pipelines.rank_order.value
    yield order != "pp-outermost", "rank_order", order
    yield hides_exchanges(plan), "expert_overlap", "batch"
    yield gathers_keys(plan), "cp_keys", plan.pipelines.cp_keys.value


def launcher_refusals(plan: PipelinePlan, launcher: Launcher) -> Iterator[Refusal]:
    """Yield what a launcher has no setting for.

    Exchanges of experts under other passes: of Megatron-LM alone. Gathered keys and values: of Megatron-Core alone, where no
    rank exchanges heads (cp_comm_type all_gather). Replicas whose ranks lie together: of Megatron-Core alone
    (use_tp_pp_dp_mapping), where experts have as many replicas as all else; initialize_model_parallel asserts one dp for both
    of its generators of ranks.
    """
    axes = plan.axes
    apart = _has_orders(plan) and _are_replicas_together(plan)
    is_megatron = launcher in OVER_MEGATRON_CORE
    no_gathers = gathers_keys(plan) and not (is_megatron and axes.ulysses == 1)
    yield no_gathers, "cp_keys", f"gathered keys and values with ulysses {axes.ulysses}; it has rings"
    yield apart and not is_megatron, "rank_order", "dp outermost; it has pp outermost alone"
    of_experts = axes.dp * axes.cp * axes.tp / ((axes.etp or axes.tp) * axes.ep)
    given = f"dp outermost with dp {axes.dp}, {of_experts:g} of experts, for which it has groups without any, too"
    yield apart and is_megatron and of_experts != axes.dp, "rank_order", given
    given = "exchanges of experts under another micro-batch; it shows them"
    yield hides_exchanges(plan) and launcher is not Launcher.MEGATRON_LM, "expert_overlap", given


def hides_exchanges(plan: PipelinePlan) -> bool:
    """Return True if a plan asks for exchanges of experts under another micro-batch."""
    return plan.pipelines.expert_overlap == "batch"


def expert_overlap_violations(plan: PipelinePlan) -> Iterator[Violation]:
    """Something is exchanged, and passes of another micro-batch can run beside it: interleaved, or without a pipeline, with two
    micro-batches a stage. No whole layer runs again."""
    suits = plan.axes.pp == 1 or plan.schedule == "interleaved-1f1b"
    suits = suits and plan.axes.ep > 1 and plan.microbatch.count >= 2 * plan.axes.pp
    again = any(stage.recompute is Recompute.FULL or exchanges_again(stage) for stage in plan.stages)
    if hides_exchanges(plan) and (again or not suits):
        given = f"batch, with ep {plan.axes.ep}, pp {plan.axes.pp}, {plan.schedule}, {plan.microbatch.count} micro-batches"
        yield Violation(Rule.STAGES, "plan.expert_overlap", given)


def unlike_stage_violations(plan: PipelinePlan) -> Iterator[Violation]:
    """Stages that differ have no replicas whose ranks could lie together, and rings."""
    order = plan.pipelines.rank_order.value
    if hides_exchanges(plan):
        yield Violation(Rule.STAGES, "plan.expert_overlap", "batch; stages that differ show their exchanges")
    if order != "pp-outermost":
        yield Violation(Rule.DEVICES, "plan.rank_order", f"{order}; stages that differ lie one behind the other")
    if gathers_keys(plan):
        yield Violation(Rule.DEVICES, "plan.cp_keys", "gathered; stages that differ have rings")


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


def gathers_keys(plan: PipelinePlan) -> bool:
    """Return True if the ranks of a sequence gather keys and values before attention."""
    return plan.pipelines.cp_keys.value == "gathered"


def gathered_keys_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Keys and values are gathered by several ranks with the same heads, for causal attention in 16 bits of a sequence to
    itself, keys as wide as values."""
    if not gathers_keys(plan):
        return
    where, axes, stated = "plan.cp_keys", plan.axes, request.workload.implementation
    if axes.cp <= axes.ulysses:
        yield Violation(Rule.AXES, where, f"gathered, with cp {axes.cp} and ulysses {axes.ulysses}")
    if stated is not None and stated.attention_format == "fp8":
        yield Violation(Rule.SEQUENCE, where, "gathered, of attention in fp8")
    attended = list(_attention(request))
    if not attended:
        yield Violation(Rule.SEQUENCE, where, "gathered, of a model without attention")
    for name, operator in attended:
        widths = {request.model.dims[tensor.dims[-1]] for tensor in operator.inputs[1:]}
        own = all(SEQ in tensor.dims for tensor in operator.inputs)
        if operator.mask is None or operator.mask.value != "causal" or not own or len(widths) > 1:
            given = f"gathered; {name}/{operator.name} is not causal within one sequence, with keys as wide as values"
            yield Violation(Rule.SEQUENCE, where, given)


def gathered_bytes(plan: PipelinePlan, request: TrainingRequest, block: str) -> list[float]:
    """Bytes of keys and values of a micro-batch's whole sequences that each attention of a block gathers on one of the tp
    x ulysses ranks, which share its heads at the most; none where the ranks gather nothing."""
    sizes = {**request.model.dims, BATCH: plan.microbatch.size, SEQ: request.workload.seq_len}
    of_element = request.workload.precision.size_bytes / (plan.axes.tp * plan.axes.ulysses)
    return [
        sum(math.prod(sizes[dim] for dim in tensor.dims) for tensor in operator.inputs[1:]) * of_element
        for name, operator in _attention(request)
        if name == block and gathers_keys(plan)
    ]


def _attention(request: TrainingRequest) -> Iterator[tuple[str, Operator]]:
    for name in dict.fromkeys(request.model.layers):
        yield from ((name, op) for op in request.model.block(name).operators if op.kind is OperatorKind.ATTENTION)


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
    if stage.recompute is Recompute.FINE_GRAINED:
        asked = request.search.recompute_modules
        every = asked == () and stage.recompute_modules is None
        of_any = "any" in asked and "/" not in (stage.recompute_modules or "")
        of_operators = "operators" in asked and not {*(stage.recompute_modules or "").split("+")} & {*_MODULES}
        listed = asked or ("the usual",)
        yield f"{where}.recompute_modules", stage.recompute_modules, () if every or of_any or of_operators else listed


def exchanges_again(stage: Stage) -> bool:
    """Return True if what goes to experts and back goes again in the backward pass."""
    return "moe" in (stage.recompute_modules or "").split("+")


def stage_refusals(plan: PipelinePlan, launcher: Launcher) -> Iterator[Refusal]:
    """Yield what a launcher has no setting for. Megatron-LM has --recompute-num-layers."""
    some = any(stage.recompute_layers is not None for stage in plan.stages)
    refused = "some layers of a stage recomputed; it recomputes all of them or none"
    yield some and launcher not in OVER_MEGATRON_CORE, "stages", refused


def stage_choice_violations(plan: PipelinePlan, request: TrainingRequest, index: int) -> Iterator[Violation]:
    """Some layers of each part recomputed whole, and others not: of a chain, whose activations all stay, as many in each, by a
    schedule whose backward pass is whole."""
    stage, where = plan.stages[index], f"plan.stages[{index}].recompute_layers"
    yield from _module_violations(plan, request, index)
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


_MODULES = ("layernorm", "moe_act", "mla_up_proj", "core_attn", "mlp", "moe", "shared_experts")
"""Names of modules, in the order in which a set names them."""


def _module_violations(plan: PipelinePlan, request: TrainingRequest, index: int) -> Iterator[Violation]:
    """Modules are named once each, in order, under fine-grained recomputation alone, and in one pipeline the same by all."""
    stage, where = plan.stages[index], f"plan.stages[{index}].recompute_modules"
    if stage.recompute_modules is None:
        return
    named = stage.recompute_modules.split("+")
    single = sorted({name for name in named if "/" in name})
    in_order = [*(module for module in _MODULES if module in named), *single]
    for name in single:
        yield from _operator_violations(name, request, where)
    if named != in_order or stage.recompute is not Recompute.FINE_GRAINED:
        given = f"{stage.recompute_modules!r} under recompute {stage.recompute.value}"
        yield Violation(Rule.STAGES, where, f"{given}; modules are {', '.join(_MODULES)}, under fine-grained")
    others = {other.recompute_modules for other in plan.stages if other.recompute is Recompute.FINE_GRAINED}
    if len(others) > 1 and request.search.stage_degrees is StageDegrees.SAME:
        yield Violation(Rule.STAGES, where, f"{stage.recompute_modules}; all stages run the same modules again")


def _operator_violations(name: str, request: TrainingRequest, where: str) -> Iterator[Violation]:
    """An operator that runs again by itself is one of a layer, in the free space: neither a scan, which keeps the states that
    it began with, nor one that sends tokens to experts or gets them back."""
    block_name, _, operator_name = name.partition("/")
    if request.search.space is not Space.FREE:
        yield Violation(Rule.LAUNCHER, where, f"{name}; no launcher runs single operators again")
    block = next((block for block in request.model.blocks if block.name == block_name), None)
    operators = () if block is None else block.operators
    operator = next((each for each in operators if each.name == operator_name), None)
    ends = {OperatorKind.EMBEDDING, OperatorKind.LOSS} & {each.kind for each in operators}
    if operator is None or ends or operator.kind in (OperatorKind.SCAN, OperatorKind.CONVOLUTION):
        yield Violation(Rule.STAGES, where, f"{name} is no operator of a layer that can run again")
        return
    assert block is not None, "it has the operator"
    inside = {each.name for each in operators if picked_dims(each)} | between_experts(block)
    neighbours = [each for each in operators if each.name in inside]
    to_experts = {tensor.name for each in neighbours for tensor in each.inputs} & {t.name for t in operator.outputs}
    from_experts = {tensor.name for each in neighbours for tensor in each.outputs} & {t.name for t in operator.inputs}
    if operator.name not in inside and (to_experts or from_experts):
        yield Violation(Rule.STAGES, where, f"{name} sends tokens to experts or gets them back")


def recomputed_of_part(stage: Stage, layers: Sequence[int]) -> Sequence[int]:
    """Return the layers under the stage's recompute mode, of those of a part that can be."""
    return layers[: stage.recompute_layers]
