"""The rank grids that a serving engine can run for a model, by its rules in `solver.problem.launchers`."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.dims import EXPERT_FFN, EXPERTS, HEADS, KV_HEADS
from meshwright.costmodels.model.expert_routing import BALANCED, ExpertRouting, HistogramRouting
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.model.split_dims import RankGrid
from meshwright.costmodels.model.weight_format import WeightFormat
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.latent_attention import latent_expansion
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.launchers.server import PromptSharing
from meshwright.solver.problem.launchers.table import ENGINES

FP8_BLOCK = 128
"""Side of the blocks that share a scale in block fp8 checkpoints: a rank holds whole blocks (vLLM, Fp8LinearMethod)."""


@dataclass(frozen=True, slots=True)
class ServedShape:
    """Sizes of a model that engines have rules for.

    heads, kv_heads   of attention; latent attention has one key/value head
    experts           routed experts of a layer, 0 without; ``expert_ffn`` their width
    states            whether layers keep recurrent states
    block             columns that a rank's share of an expert must be a multiple of
    """

    heads: int
    kv_heads: int
    experts: int
    expert_ffn: int
    states: bool
    block: int


def served_shape(model: ModelGraph, weights: WeightFormat) -> ServedShape:
    """The shape of a model with weights in a format."""
    kinds = {operator.kind for block in model.blocks for operator in block.operators}
    latent = any(latent_expansion(block.operators) is not None for block in model.blocks)
    heads = model.dims.get(HEADS, 1)
    return ServedShape(
        heads=heads,
        kv_heads=1 if latent else model.dims.get(KV_HEADS, heads),
        experts=model.dims.get(EXPERTS, 0),
        expert_ffn=model.dims.get(EXPERT_FFN, 0),
        states=OperatorKind.SCAN in kinds,
        block=FP8_BLOCK if weights is WeightFormat.FP8_BLOCK else 1,
    )


def runs(engine: ServingEngine, grid: RankGrid, shape: ServedShape) -> bool:
    """Return True if an engine runs a grid that divides the model evenly."""
    if not shape.experts:
        # Attention groups of a dense model are replicas, which are counted as such.
        if grid.attention_dp > 1 or grid.ep > 1:
            return False
    elif shape.expert_ffn // grid.expert_tp % shape.block:
        return False
    if grid.cp > 1 and not _shares_prompts(engine, grid, shape):
        return False
    facts = ENGINES[engine]
    if not facts.spreads_over_some and grid.ep not in (1, grid.ranks):
        return False
    if not facts.groups_of_several_ranks and grid.attention_dp > 1 and grid.dense_tp > 1:
        return False
    return grid.kvp == 1 or (facts.splits_caches and _splits_caches(grid, shape))


def _shares_prompts(engine: ServingEngine, grid: RankGrid, shape: ServedShape) -> bool:
    match ENGINES[engine].prompt_sharing:
        case PromptSharing.NONE:
            return False
        case PromptSharing.WITHOUT_STATES:
            return grid.kvp == 1 and not shape.states


def _splits_caches(grid: RankGrid, shape: ServedShape) -> bool:
    """Return True if KV parallelism saves anything: heads are split as far as they go, and no further (Helix, TPA <= K)."""
    per_kv_head = shape.heads // shape.kv_heads
    return grid.attention_dp == 1 and grid.tp == shape.kv_heads and per_kv_head % grid.kvp == 0 and not shape.states


def holds_copies(grid: RankGrid, *, experts: int, copies: int) -> bool:
    """Return True if copies of hot experts lie evenly on the groups that hold whole experts (vLLM, --enable-eplb, goes with
    --enable-expert-parallel)."""
    return copies == 0 or (grid.ep > 1 and (experts + copies) % grid.ep == 0)


def require_routable(model: ModelGraph, routing: ExpertRouting) -> None:
    """Refuse a routing that is not of this model: of a model without experts, or counts of another number of them."""
    experts = model.dims.get(EXPERTS, 0)
    if not experts and routing != BALANCED:
        raise WorkloadError("the model has no experts to route to", given=model.name, remedy="leave out workload.experts")
    if isinstance(routing, HistogramRouting) and len(routing.counts) != experts:
        raise WorkloadError("the routing histogram is not of this model", given=len(routing.counts), allowed=str(experts))
