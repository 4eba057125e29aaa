"""Layers of a plan's stages: all of the model, each once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.verify.violation import Rule, Violation


def layer_violations(stages: Sequence[Stage], request: PlanRequest) -> Iterator[Violation]:
    """Every layer of the model once, in order, under its own block's name; no stage without layers."""
    layers = request.model.layers
    expected = 0
    for index, stage in enumerate(stages):
        if not sum(span.count for span in stage.blocks):
            yield Violation(Rule.LAYERS, f"plan.stages[{index}]", "holds no layer")
        for span in stage.blocks:
            where = f"plan.stages[{index}], layers {span.first} to {span.first + span.count - 1}"
            if span.first != expected:
                yield Violation(Rule.LAYERS, where, f"layer {expected} should come next")
            if span.first + span.count > len(layers):
                yield Violation(Rule.LAYERS, where, f"the model has {len(layers)} layers")
            elif any(layers[i] != span.block for i in range(span.first, span.first + span.count)):
                yield Violation(Rule.LAYERS, where, f"not all of them are copies of block {span.block!r}")
            expected = span.first + span.count
    if expected != len(layers):
        yield Violation(Rule.LAYERS, "plan.stages", f"they end at layer {expected}, the model has {len(layers)}")
