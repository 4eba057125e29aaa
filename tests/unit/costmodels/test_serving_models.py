"""Serving costs of what is not a dense transformer: experts, latent attention, windows, states and narrow weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.app.models.catalog import model
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.experts import BALANCED, BalancedRouting, ExpertRouting, PowerLawRouting
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.model.split_dims import RankGrid, divides
from meshwright.costmodels.serving.attention import latent_cache, latent_prefill_s
from meshwright.costmodels.serving.engine_profile import ENGINE_VLLM, Quantised, ServingPrecision
from meshwright.costmodels.serving.memory import CacheBytes, block_memory
from meshwright.costmodels.serving.operators import ServedOn, fused_products, stage_ranks
from meshwright.costmodels.serving.step_time import BlockTimes, TableRange, block_times
from meshwright.costmodels.units import DType
from meshwright.solver.problem.graph import ModelGraph
from tests.unit.costmodels.serving_models import MAMBA

RANGE = TableRange(step_tokens=2048, sequences=64, sequence_tokens=16384)
BF16 = ServingPrecision(WeightFormat.BF16, DType.BF16, DType.BF16)
BLOCK_FP8 = ServingPrecision(WeightFormat.FP8_BLOCK, DType.BF16, DType.BF16)


def on(graph: ModelGraph, grid: RankGrid, precision: ServingPrecision = BF16, node: str = "dgx-h200") -> ServedOn:
    group = NodeGroup("a", node_type(node), 2)
    return ServedOn(graph.dims, group.node.device, stage_ranks(Cluster((group,)), grid), precision)


def times(graph: ModelGraph, block: str, served: ServedOn, routing: ExpertRouting = BALANCED) -> BlockTimes:
    return block_times(graph.block(block).operators, served, engine=ENGINE_VLLM, table_range=RANGE, routing=routing)


def test_latent_cache_is_compressed_and_the_same_on_every_rank() -> None:
    graph = model("deepseek-v3")
    layer = graph.block("layer_moe").operators
    cache = latent_cache(layer, graph.dims)
    assert cache is not None
    assert cache.elements == 512 + 64
    for tp in (1, 8):
        memory = block_memory(layer, graph.dims, grid=RankGrid(tp=tp), precision=BF16)
        assert memory.cache.per_token == 576 * 2
    split = block_memory(layer, graph.dims, grid=RankGrid(kvp=8), precision=BF16)
    assert split.cache.per_token == 576 * 2 / 8
    assert latent_cache(model("llama-3.1-8b").block("layer").operators, graph.dims) is None


def test_latent_decoding_reads_the_latents_once_for_all_heads() -> None:
    graph = model("deepseek-v3")
    served = on(graph, RankGrid(tp=8))
    read_s = 64 * 16384 * 576 * 2 / served.device.memory_bytes_per_s
    assert read_s < times(graph, "layer_moe", served).decode_s[64, -1] < 1.4 * read_s


@pytest.mark.parametrize(("node", "cache", "measured_s"), [("dgx-b200", DType.FP8, 1975e-6), ("dgx-h200", DType.BF16, 4816e-6)])
def test_prompts_of_latent_attention_take_as_long_as_measured(node: str, cache: DType, measured_s: float) -> None:
    """A prompt of 8,192 tokens over 128 heads, a row of the measured tables."""
    device, tokens = node_type(node).device, np.array([8192.0])
    pairs = tokens * (tokens + 1.0) / 2.0
    flops = 2.0 * 128 * (192 + 128) * pairs
    seconds = latent_prefill_s(device, cache, flops=flops, q_tokens=tokens, kv_tokens=tokens, heads=128, width=160.0)
    assert float(seconds[0]) == pytest.approx(measured_s, rel=0.1)


def test_experts_of_a_batch_are_read_not_all() -> None:
    graph = model("deepseek-v3")
    few, many = (times(graph, "layer_moe", on(graph, RankGrid(tp=8, ep=8), BLOCK_FP8)).tokens_s[n] for n in (1, 256))
    expert_s = 3 * 7168 * 2048 / node_type("dgx-h200").device.memory_bytes_per_s
    # One token meets 8 of 256 experts, one on each rank; 256 tokens meet nearly all 32 of a rank.
    assert many - few > 0.8 * 31 * expert_s
    assert many < few + 1.8 * 31 * expert_s


def test_attention_groups_bring_their_tokens_to_shared_experts() -> None:
    graph = model("deepseek-v3")
    alone = times(graph, "layer_moe", on(graph, RankGrid(tp=1, attention_dp=8, ep=8), BLOCK_FP8))
    together = times(graph, "layer_moe", on(graph, RankGrid(tp=8, ep=8), BLOCK_FP8))
    # 32 tokens of each of 8 groups are 256 tokens of one; latents are read by one rank instead of by all.
    assert alone.decode_s[8, -1] < 0.5 * together.decode_s[64, -1]
    assert alone.tokens_s[128] > alone.tokens_s[1] * 1.5


def test_skewed_routing_costs_and_copies_help() -> None:
    graph = model("deepseek-v3")
    served = on(graph, RankGrid(tp=8, ep=8), BLOCK_FP8)
    balanced, skewed = (times(graph, "layer_moe", served, r) for r in (BALANCED, PowerLawRouting("power_law", 0.6)))
    helped = times(graph, "layer_moe", served, PowerLawRouting("power_law", 0.6, redundant_experts=32))
    assert balanced.tokens_s[2048] < helped.tokens_s[2048] < skewed.tokens_s[2048]


def test_weights_of_experts_are_divided_by_all_ranks() -> None:
    graph = model("deepseek-v3")
    layer = graph.block("layer_moe").operators
    one = block_memory(layer, graph.dims, grid=RankGrid(), precision=BF16).weights_bytes
    experts = 256 * 3 * 7168 * 2048 * 2
    for grid in (RankGrid(tp=8, ep=8), RankGrid(tp=8)):
        dense = block_memory(layer, graph.dims, grid=grid, precision=BF16).weights_bytes - experts / 8
        assert 0 < dense < (one - experts) / 4
    groups = block_memory(layer, graph.dims, grid=RankGrid(attention_dp=8, ep=8), precision=BF16).weights_bytes
    assert groups == pytest.approx(one - experts + experts / 8)
    copies = block_memory(layer, graph.dims, grid=RankGrid(tp=8, ep=8), precision=BF16, routing=BalancedRouting("balanced", 32))
    plain = block_memory(layer, graph.dims, grid=RankGrid(tp=8, ep=8), precision=BF16)
    assert copies.weights_bytes - plain.weights_bytes == 4 * 3 * 7168 * 2048 * 2


def test_grids_divide_heads_and_experts() -> None:
    dims = model("qwen3-235b-a22b").dims
    assert divides(dims, RankGrid(tp=4, ep=4))
    assert divides(dims, RankGrid(tp=4, kvp=2, ep=8))
    assert not divides(dims, RankGrid(tp=3, ep=3))
    assert not divides(dims, RankGrid(tp=1, attention_dp=24, ep=24))


@pytest.mark.parametrize(
    ("weights", "bytes_a_weight"),
    [
        (WeightFormat.BF16, 2.0),
        (WeightFormat.FP8, 1.0),
        (WeightFormat.FP8_BLOCK, 1.000244140625),
        (WeightFormat.NVFP4, 0.5625),
        (WeightFormat.MXFP4, 0.53125),
        (WeightFormat.INT8, 1.0),
        (WeightFormat.INT4, 0.515625),
    ],
)
def test_narrow_weights_take_and_are_read_with_their_scales(weights: WeightFormat, bytes_a_weight: float) -> None:
    graph = model("llama-3.1-8b")
    precision = replace(BF16, weights=weights)
    layer = graph.block("layer").operators
    memory = block_memory(layer, graph.dims, grid=RankGrid(), precision=precision).weights_bytes
    norms = 2 * 4096
    assert memory == pytest.approx((graph.block_parameters("layer") - norms) * bytes_a_weight + norms * 2)
    wide = times(graph, "layer", on(graph, RankGrid())).tokens_s[1]
    narrow = times(graph, "layer", on(graph, RankGrid(), precision)).tokens_s[1]
    assert narrow <= wide
    if bytes_a_weight < 0.6:
        assert narrow < 0.62 * wide


def test_widened_weights_compute_no_faster() -> None:
    graph = model("llama-3.1-8b")
    wide, narrow = (
        times(graph, "layer", on(graph, RankGrid(), replace(BF16, weights=weights))).tokens_s[2048]
        for weights in (WeightFormat.BF16, WeightFormat.INT4)
    )
    assert narrow == pytest.approx(wide, rel=0.1)


def test_feed_forward_quantisation_leaves_attention_wide() -> None:
    graph = model("gpt-oss-120b")
    layer = graph.blocks[1].operators
    all_narrow, some, more = (
        block_memory(
            layer, graph.dims, grid=RankGrid(), precision=ServingPrecision(WeightFormat.MXFP4, DType.BF16, DType.BF16, q)
        )
        for q in (Quantised.PROJECTIONS, Quantised.FEED_FORWARD, Quantised.FEED_FORWARD_AND_OUTPUT)
    )
    attention = 2880 * 64 * (64 + 8 + 8) + 64 * 64 * 2880
    assert some.weights_bytes - all_narrow.weights_bytes == pytest.approx(attention * (2 - 0.53125), rel=0.01)
    output = 64 * 64 * 2880
    assert some.weights_bytes - more.weights_bytes == pytest.approx(output * (2 - 0.53125), rel=0.01)


def test_windows_bound_the_cache() -> None:
    graph = model("gpt-oss-120b")
    caches = {
        block.name: block_memory(block.operators, graph.dims, grid=RankGrid(), precision=BF16).cache for block in graph.blocks
    }
    sliding = [cache for cache in caches.values() if cache.windowed]
    assert [cache.windowed for cache in sliding] == [{128: 2 * 8 * 64 * 2.0}]
    whole = CacheBytes(per_token=10.0, windowed={100: 10.0})
    free_bytes = 1e6
    # Room for whole sequences, 50,000 tokens, or for windows of ten sequences and a step: nearly twice as many.
    assert whole.tokens_that_fit(free_bytes, sequences=10, step_tokens=1000) == (1_000_000 - 20_000) // 160 * 16
    assert whole.tokens_that_fit(free_bytes, sequences=10_000, step_tokens=1000) == 50_000
    assert whole.bytes_of(98_000, sequences=10, step_tokens=1000) <= free_bytes


def test_states_are_kept_by_sequence_and_read_by_sequence() -> None:
    graph = read_huggingface_config(MAMBA, name="tiny-jamba")
    block = next(b for b in graph.blocks if any(o.kind.value == "scan" for o in b.operators))
    state = 2048 * 16 * 4 + 2048 * 3 * 2
    assert block_memory(block.operators, graph.dims, grid=RankGrid(), precision=BF16).cache == CacheBytes(per_sequence=state)
    halves = block_memory(block.operators, graph.dims, grid=RankGrid(tp=2), precision=BF16).cache
    assert halves.per_sequence == state / 2
    decode = times(graph, block.name, on(graph, RankGrid())).decode_s
    assert np.all(np.diff(decode[1:, 0]) > 0)
    assert np.all(decode[:, 0] == decode[:, -1])
    assert CacheBytes(per_sequence=100.0).tokens_that_fit(1000.0, sequences=11, step_tokens=1) == 0


def test_chunked_attention_never_looks_back_over_its_chunk() -> None:
    config = {
        "model_type": "llama4_text", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 2048, "intermediate_size_mlp": 4096,
        "num_local_experts": 4, "num_experts_per_tok": 1, "vocab_size": 32000, "attention_chunk_size": 1024,
        "interleave_moe_layer_step": 1, "no_rope_layers": [1, 1, 1, 0], "architectures": ["Llama4ForCausalLM"],
    }  # fmt: skip
    graph = read_huggingface_config(config, name="tiny-llama4")
    chunked = next(b.name for b in graph.blocks if any(o.window for o in b.operators))
    full = next(b.name for b in graph.blocks if any(o.kind.value == "attention" and not o.window for o in b.operators))
    served = on(graph, RankGrid())
    tables = {name: times(graph, name, served) for name in (chunked, full)}
    pairs = tables[chunked].prefill_s_per_pair[-1] / tables[full].prefill_s_per_pair[-1]
    assert pairs[0] < 0.8
    assert pairs[-1] < 0.3
    assert tables[chunked].decode_s[32, -1] < 0.5 * tables[full].decode_s[32, -1]


def test_a_shared_expert_runs_beside_the_routed_ones_in_small_steps() -> None:
    graph = model("deepseek-v3")
    served = on(graph, RankGrid(tp=8), BLOCK_FP8)
    layer = graph.block("layer_moe").operators
    apart, beside = (
        block_times(layer, served, engine=replace(ENGINE_VLLM, beside_tokens=tokens), table_range=RANGE).tokens_s
        for tokens in (0, 256)
    )
    assert np.all(beside[1:257] < apart[1:257])
    # Two products and an activation function are hidden, no more.
    assert apart[4] - beside[4] < 4e-5
    assert beside[2048] == apart[2048]


def test_projections_into_latents_are_one_product() -> None:
    graph = model("deepseek-v3")
    served = on(graph, RankGrid(tp=8))
    fused = fused_products(graph.block("layer_moe").operators, served)
    assert fused.followers == {"kv_a_proj"}
    assert fused.more_columns == {"q_a_proj": 512 + 64}
    assert not fused_products(graph.block("layer_dense").operators, on(graph, RankGrid(tp=8))).followers - {"kv_a_proj"}
    llama = model("llama-3.1-8b")
    assert not fused_products(llama.block("layer").operators, on(llama, RankGrid())).followers
