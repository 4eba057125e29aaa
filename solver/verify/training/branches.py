"""Models that branch, checked from the graph alone: what must run before what, and which tensors a stage holds besides.

A layer reads the tensor that its run continues, and by name those of other runs that have an edge to its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.rules.parameters import Share
from meshwright.solver.verify.violation import Rule, Violation


def branch_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Every layer once under its own block's name, and none on an earlier stage than a layer that it reads from."""
    layers = request.model.layers
    stage_of: dict[int, int] = {}
    for index, stage in enumerate(plan.stages):
        where = f"plan.stages[{index}]"
        if not sum(span.count for span in stage.blocks):
            yield Violation(Rule.LAYERS, where, "holds no layer")
        for span in stage.blocks:
            for layer in range(span.first, span.first + span.count):
                if layer >= len(layers) or layers[layer] != span.block:
                    yield Violation(Rule.LAYERS, where, f"layer {layer} is no copy of block {span.block!r}")
                elif layer in stage_of:
                    yield Violation(Rule.LAYERS, where, f"layer {layer} is on stage {stage_of[layer]} already")
                stage_of[layer] = index
    missing = sorted(set(range(len(layers))) - set(stage_of))
    if missing:
        yield Violation(Rule.LAYERS, "plan.stages", f"they leave out layers {missing}")
        return
    for before, after in _dependencies(request.model):
        if stage_of[before] > stage_of[after]:
            given = f"layer {after} on stage {stage_of[after]} reads layer {before} on stage {stage_of[before]}"
            yield Violation(Rule.LAYERS, "plan.stages", given)


def side_bytes(stage: Stage, request: TrainingRequest, share: Share, *, split: int) -> float:
    """Bytes kept for one micro-batch of tensors that layers of a stage read besides the stream they continue: each once.

    They lie as the residual stream between blocks does, split over ``split`` ranks of the tp axis.
    """
    model, dtype = request.model, request.workload.precision
    here = {span.block for span in stage.blocks}
    held: dict[int, float] = {}
    for source, target in model.edges:
        name = model.block(model.chain[source].block).output
        if model.chain[target].block in here and name in _read_names(model, target):
            held[source] = _tensor_bytes(model, target, name, share, dtype)
    return sum(held.values()) / split


def _read_names(model: ModelGraph, run: int) -> set[str]:
    """Names of tensors that a run reads by name besides its stream; none where it reads one tensor only."""
    block = model.block(model.chain[run].block)
    written = {tensor.name for operator in block.operators for tensor in operator.outputs}
    read = {tensor.name for operator in block.operators for tensor in operator.inputs} - written
    return read if len(read) > 1 else set()


def _tensor_bytes(model: ModelGraph, run: int, name: str, share: Share, dtype: DType) -> float:
    block = model.block(model.chain[run].block)
    tensor = next(t for operator in block.operators for t in operator.inputs if t.name == name)
    return tensor.elements(share.sizes) * dtype.size_bytes


def _dependencies(model: ModelGraph) -> Iterator[tuple[int, int]]:
    """(earlier, later) layers: neighbours in a run, and over an edge the earlier run's last and the later one's first."""
    ends: list[tuple[int, int]] = []
    count = 0
    for run in model.chain:
        ends.append((count, count + run.repeat - 1))
        count += run.repeat
    for first, last in ends:
        yield from ((layer, layer + 1) for layer in range(first, last))
    yield from ((ends[source][1], ends[target][0]) for source, target in model.edges)
