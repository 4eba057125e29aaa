"""Experts spread over ranks: what the ep axis may be, and which weights it divides."""

from __future__ import annotations

from collections.abc import Iterator

from costmodels.expert_routing import expert_placement
from costmodels.operators import Operator, OperatorKind
from costmodels.tensor_parallel import EXPERTS, TOP_K
from solver.graph import Block
from solver.plan import Plan
from solver.request import PlanRequest, TrainingWorkload
from solver.verify.violation import Rule, Violation


def picked_dims(operator: Operator) -> set[str]:
    """Dims that only the weights of a product have: each row meets one index of them, an expert, which routing picks."""
    if operator.kind is not OperatorKind.MATMUL:
        return set()
    in_weights = {dim for weight in operator.weights for dim in weight.dims}
    return in_weights - {dim for tensor in (*operator.inputs, *operator.outputs) for dim in tensor.dims}


def crowded_rows(block: Block) -> set[str]:
    """Tensors whose rows routing sent to their experts' ranks: what products with a weight for each expert read or write."""
    rows: set[str] = set()
    for operator in block.operators:
        if picked_dims(operator):
            rows |= {tensor.name for tensor in (*operator.inputs, *operator.outputs)}
    return rows


def fullest_share(request: PlanRequest, ep: int) -> float:
    """Rows of the rank with the most over the mean of ``ep`` ranks, as the workload says that tokens spread."""
    workload, dims = request.workload, request.model.dims
    if ep == 1 or EXPERTS not in dims or not isinstance(workload, TrainingWorkload):
        return 1.0
    return expert_placement(workload.experts, experts=dims[EXPERTS], top_k=dims.get(TOP_K, 1), ep=ep).skew


def expert_axis_violations(plan: Plan, request: PlanRequest) -> Iterator[Violation]:
    """Experts divide over ep ranks of a stage's dp x cp, all alike (Megatron-LM: num_experts % ep == 0)."""
    assert plan.axes is not None, "answer_violations asks for axes first"
    axes, model = plan.axes, request.model
    if axes.ep <= 1:
        return
    used = [operator for name in set(model.layers) for operator in model.block(name).operators]
    numbers = {model.dims[dim] for operator in used for dim in picked_dims(operator)}
    if not numbers:
        yield Violation(Rule.AXES, "plan.axes.ep", f"{axes.ep}, and the model has no experts to spread")
    if axes.dp * axes.cp % axes.ep:
        given = f"{axes.ep}, which does not divide dp x cp = {axes.dp * axes.cp}"
        yield Violation(Rule.AXES, "plan.axes.ep", given)
    for experts in sorted(number for number in numbers if number % axes.ep):
        yield Violation(Rule.DIVISIBILITY, "plan.axes.ep", f"{experts} experts do not divide by ep {axes.ep}")
