"""What a request asks of parts of the model by name: shardings of operators and tensors, operators alike, layers on a stage."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.problem.declared.constraints import AlikeShardings, FixedSharding, FixedStage, FixedTensor
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.rules import LEADERS, REPLICATE
from meshwright.solver.verify.violation import Rule, Violation


def constraint_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Each of the request's constraints holds for a plan that shards every operator in use."""
    strategies = {(entry.block, entry.operator): entry.strategy for entry in plan.shardings}
    have = {
        f"{name}/{operator.name}": (operator, strategies[name, operator.name].partition("+")[0])
        for name in dict.fromkeys(request.model.layers)
        for operator in request.model.block(name).operators
    }
    for constraint in request.search.constraints:
        match constraint:
            case FixedSharding(pattern, asked):
                yield from _sharding_violations(pattern, asked, have)
            case FixedTensor(pattern, asked):
                yield from _tensor_violations(pattern, asked, have)
            case AlikeShardings(patterns):
                every = {"/".join(key): strategy for key, strategy in strategies.items()}
                alike = {name: at for name, at in every.items() if any(_is_like(each, name) for each in patterns)}
                if len(set(alike.values())) > 1:
                    yield Violation(Rule.SEARCH, ", ".join(alike), f"{[*alike.values()]}, the request has them alike")
            case FixedStage():
                yield from _stage_violations(constraint, plan, request.model.layers)


_Have = dict[str, tuple[Operator, str]]
"""By block/operator: the operator and its strategy."""


def _sharding_violations(pattern: str, asked: str, have: _Have) -> Iterator[Violation]:
    for where, (_, strategy) in have.items():
        if strategy != asked and _is_like(pattern, where):
            yield Violation(Rule.SEARCH, where, f"{strategy!r}, the request asks for {asked!r}")


def _tensor_violations(pattern: str, asked: str, have: _Have) -> Iterator[Violation]:
    for where, (operator, strategy) in have.items():
        for tensor in operator.outputs:
            layout = _written(operator, tensor, strategy)
            if layout != asked and _is_like(pattern, f"{where.partition('/')[0]}/{tensor.name}"):
                yield Violation(Rule.SEARCH, where, f"writes {tensor.name!r} {layout!r}, the request asks for {asked!r}")


def _written(operator: Operator, tensor: Tensor, strategy: str) -> str:
    """The layout in which an operator under a strategy writes a tensor: whole, split along a dim, or in partial sums."""
    split = [dim for dim in tensor.dims if strategy in (dim, LEADERS.get(dim))]
    if strategy == REPLICATE or split:
        return split[0] if split else REPLICATE
    summed = operator.kind in (OperatorKind.EMBEDDING, OperatorKind.LOSS)
    if operator.kind is OperatorKind.MATMUL:
        summed = strategy in operator.inputs[0].dims and all(strategy not in each.dims for each in operator.outputs)
    return "partial sums" if summed else REPLICATE


def _stage_violations(asked: FixedStage, plan: PipelinePlan, names: tuple[str, ...]) -> Iterator[Violation]:
    mine, n_stages = [layer for layer, name in enumerate(names) if _is_like(asked.blocks, name)], len(plan.stages)
    if asked.layers is not None:
        first, _, last = asked.layers.partition("-")
        mine = mine[int(first) : int(last or first) + 1]
    if not -n_stages <= asked.stage < n_stages:
        yield Violation(Rule.SEARCH, "plan.stages", f"{n_stages} stages, the request asks for layers on stage {asked.stage}")
        return
    index = asked.stage % n_stages
    spans = plan.stages[index].blocks
    lacking = [layer for layer in mine if not any(span.first <= layer < span.first + span.count for span in spans)]
    if lacking:
        given = f"without layer {lacking[0]} of the model, which the request asks for on it"
        yield Violation(Rule.SEARCH, f"plan.stages[{index}]", given)


def _is_like(pattern: str, name: str) -> bool:
    """Return True if a name is a pattern with some text for each ``*``: letter by letter, where in the name one can be."""
    places = {0}
    for letter in pattern:
        if letter == "*":
            places = set(range(min(places, default=len(name) + 1), len(name) + 1))
        else:
            places = {place + 1 for place in places if name[place : place + 1] == letter}
    return len(name) in places
