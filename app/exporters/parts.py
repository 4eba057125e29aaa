"""The parts that a plan cuts the model in, in order of the model: one a stage, or one a model chunk (virtual stage)."""

from __future__ import annotations

from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.stage import LayerSpan, Stage

ModelPart = tuple[LayerSpan, ...]


def model_parts(plan: PipelinePlan) -> tuple[ModelPart, ...]:
    """All parts, the start of the model first; ranks that hold the same part count once."""
    parts = {part[0].first: part for stage in plan.stages for part in _chunks(stage)}
    return tuple(parts[first] for first in sorted(parts))


def parts_of_ranks(plan: PipelinePlan) -> tuple[tuple[int, ...], ...]:
    """The parts, by their places in the model, that each pipeline rank holds; in the order in which it lists them."""
    places = {part[0].first: place for place, part in enumerate(model_parts(plan))}
    return tuple(tuple(places[chunk[0].first] for chunk in _chunks(stage)) for stage in plan.stages)


def chunks_a_rank(plan: PipelinePlan) -> int:
    """Model chunks on each pipeline rank."""
    return max(1, len(plan.stages[0].chunk_layers))


def _chunks(stage: Stage) -> list[ModelPart]:
    """A stage's spans, cut where a chunk ends."""
    sizes = stage.chunk_layers or (sum(span.count for span in stage.blocks),)
    found, waiting = [], list(stage.blocks)
    for size in sizes:
        chunk: list[LayerSpan] = []
        while size:
            span = waiting.pop(0)
            taken = min(size, span.count)
            chunk.append(LayerSpan(span.block, span.first, taken))
            if taken < span.count:
                waiting.insert(0, LayerSpan(span.block, span.first + taken, span.count - taken))
            size -= taken
        found.append(tuple(chunk))
    return found
