"""Which rank grids a serving engine can run: its rules for heads, key/value heads and experts, beyond even division."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.expert_routing import BALANCED, ExpertRouting, HistogramRouting
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.model.split_dims import EXPERT_FFN, EXPERTS, HEADS, KV_HEADS, RankGrid
from meshwright.costmodels.model.weight_format import WeightFormat
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.latent_attention import latent_expansion
from meshwright.solver.problem.graph import ModelGraph

FP8_BLOCK = 128
"""Side of the blocks that share a scale in block fp8 checkpoints: a rank holds whole blocks (vLLM, Fp8LinearMethod)."""


@dataclass(frozen=True, slots=True)
class ServedShape:
    """What engines ask of a model.

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
    """Whether an engine runs a grid that divides the model evenly."""
    if not shape.experts:
        # Attention groups of a dense model are replicas, which are counted as such.
        if grid.attention_dp > 1 or grid.ep > 1:
            return False
    elif shape.expert_ffn // grid.expert_tp % shape.block:
        return False
    if grid.cp > 1 and not _shares_prompts(engine, grid, shape):
        return False
    return _RULES[engine](grid, shape)


def _shares_prompts(engine: ServingEngine, grid: RankGrid, shape: ServedShape) -> bool:
    """Context parallelism of prefill: SGLang alone (--enable-prefill-cp, --attn-cp-size, also with --enable-dp-attention).

    vLLM has the option (--prefill-context-parallel-size) but its model runner refuses it (vllm-project/vllm issue 47846);
    TensorRT-LLM's cp_config is of decoding (HELIX) or approximate (STAR). States go from token to token.
    """
    return engine is ServingEngine.SGLANG and grid.kvp == 1 and not shape.states


def holds_copies(grid: RankGrid, *, experts: int, copies: int) -> bool:
    """Whether copies of hot experts lie evenly on the groups that hold whole experts (vLLM, --enable-eplb, goes with
    --enable-expert-parallel)."""
    return copies == 0 or (grid.ep > 1 and (experts + copies) % grid.ep == 0)


def require_routable(model: ModelGraph, routing: ExpertRouting) -> None:
    """Refuse a routing that is not of this model: of a model without experts, or counts of another number of them."""
    experts = model.dims.get(EXPERTS, 0)
    if not experts and routing != BALANCED:
        raise WorkloadError("the model has no experts to route to", given=model.name, remedy="leave out workload.experts")
    if isinstance(routing, HistogramRouting) and len(routing.counts) != experts:
        raise WorkloadError("the routing histogram is not of this model", given=len(routing.counts), allowed=str(experts))


def _vllm(grid: RankGrid, shape: ServedShape) -> bool:
    """Experts whole on all ranks (--enable-expert-parallel) or split over all; decode context parallelism needs
    tensor-parallel-size > kv heads, at most tensor-parallel-size / kv heads of it, dividing the query heads of a kv head
    (ModelConfig.verify_with_parallel_config)."""
    return grid.ep in (1, grid.ranks) and _splits_caches(grid, shape)


def _tensorrt_llm(grid: RankGrid, shape: ServedShape) -> bool:
    """Attention data parallelism is over all ranks or none (enable_attention_dp); moe_tensor_parallel_size and
    moe_expert_parallel_size are any two that multiply to the ranks; Helix for latent attention (cp_config, HELIX)."""
    return (grid.attention_dp == 1 or grid.dense_tp == 1) and (grid.kvp == 1 or _splits_caches(grid, shape))


def _sglang(grid: RankGrid, shape: ServedShape) -> bool:
    """--tp-size ranks of which --dp-size attention groups (--enable-dp-attention), --ep-size dividing them."""
    return grid.kvp == 1


def _splits_caches(grid: RankGrid, shape: ServedShape) -> bool:
    """KV parallelism as far as it saves anything: heads are split as far as they go, and no further (Helix, TPA <= K)."""
    if grid.kvp == 1:
        return True
    per_kv_head = shape.heads // shape.kv_heads
    return grid.attention_dp == 1 and grid.tp == shape.kv_heads and per_kv_head % grid.kvp == 0 and not shape.states


_RULES: Mapping[ServingEngine, Callable[[RankGrid, ServedShape], bool]] = {
    ServingEngine.VLLM: _vllm,
    ServingEngine.SGLANG: _sglang,
    ServingEngine.TENSORRT_LLM: _tensorrt_llm,
}
