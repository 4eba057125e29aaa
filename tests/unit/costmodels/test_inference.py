from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, NodeGroup, group_topology
from meshwright.costmodels.hardware import device, node_type
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.model.split_dims import RankGrid, divides, leaves_partial_sums, local_sizes
from meshwright.costmodels.queueing.step_times import StepTimes
from meshwright.costmodels.serving.engine_profile import ENGINE_VLLM
from meshwright.costmodels.serving.memory import CacheBytes, block_memory
from meshwright.costmodels.serving.operators import ServedOn, stage_ranks
from meshwright.costmodels.serving.step_time import BlockTimes, ServingPrecision, TableRange, block_times, step_times
from meshwright.costmodels.units import DType
from meshwright.solver.problem.graph import ModelGraph

BF16 = ServingPrecision(WeightFormat.BF16, DType.BF16, DType.BF16)
FP8 = ServingPrecision(WeightFormat.FP8, DType.BF16, DType.BF16)
CLUSTER = Cluster((NodeGroup("a", node_type("dgx-h100"), 2),))
RANGE = TableRange(step_tokens=8192, sequences=128, sequence_tokens=8192)
NO_ENGINE = replace(ENGINE_VLLM, step_s=0.0, sequence_s=0.0)


def topology(tp: int, node: str = "dgx-h100") -> GroupTopology:
    return group_topology(Cluster((NodeGroup("a", node_type(node), 2),)), n=tp, stride=1)


def tables(
    graph: ModelGraph, tp: int = 1, precision: ServingPrecision = BF16, on: str = "h100"
) -> list[tuple[BlockTimes, int]]:
    return [
        (
            block_times(
                graph.block(run.block).operators,
                ServedOn(graph.dims, device(on), stage_ranks(CLUSTER, RankGrid(tp=tp)), precision),
                engine=NO_ENGINE,
                table_range=RANGE,
            ),
            run.repeat,
        )
        for run in graph.chain
    ]


def whole(graph: ModelGraph, tp: int = 1, precision: ServingPrecision = BF16, on: str = "h100") -> StepTimes:
    return pipeline([tables(graph, tp, precision, on)], [])


def pipeline(stages: list[list[tuple[BlockTimes, int]]], links: list[GroupTopology]) -> StepTimes:
    return step_times(stages, boundary_elements=4096, links=links, precision=BF16, engine=NO_ENGINE, table_range=RANGE)


def decode_s(times: StepTimes, sequences: int, kv_tokens: float = 1000.0) -> float:
    return float(times.decode_step_s(np.array([float(sequences)]), kv_tokens).sum())


def prefill_s(times: StepTimes, tokens: float, prefix: float = 0.0) -> float:
    nobody = np.zeros(1)
    return float(times.mixed_step_s(nobody, 1.0, prompt_tokens=nobody + tokens, prefix_tokens=nobody + prefix).sum())


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-32b", "gemma-2-9b", "gpt2-xl"])
def test_weights_of_a_single_rank_are_all_parameters(name: str) -> None:
    graph = model(name)
    memory = [
        (block_memory(graph.block(r.block).operators, graph.dims, grid=RankGrid(), precision=BF16), r.repeat)
        for r in graph.chain
    ]
    assert sum(n * m.weights_bytes for m, n in memory) == 2 * graph.parameters()


def test_llama_70b_by_hand() -> None:
    graph = model("llama-3.1-70b")
    layer = graph.block("layer").operators
    whole_layer = block_memory(layer, graph.dims, grid=RankGrid(), precision=BF16)
    assert whole_layer.cache.per_token == 2 * 8 * 128 * 2
    # Helix appendix A: (2 H (Q/TPA) Hsz + 2 H ceil(K/TPA) Hsz + 3 H F / TPF) bytes, and the two norms of every rank.
    for tp in (1, 2, 4, 8, 16):
        expected = 2 * 8192 * (64 // tp) * 128 + 2 * 8192 * max(1, 8 // tp) * 128 + 3 * 8192 * 28672 // tp + 2 * 8192
        assert block_memory(layer, graph.dims, grid=RankGrid(tp=tp), precision=BF16).weights_bytes == 2 * expected
    # Helix appendix A, KV cache: flat beyond tp = kv heads, whose copies it counts.
    kv = [block_memory(layer, graph.dims, grid=RankGrid(tp=tp), precision=BF16).cache.per_token for tp in (1, 4, 8, 16)]
    assert kv == [4096, 1024, 512, 512]
    quantised = block_memory(layer, graph.dims, grid=RankGrid(), precision=FP8)
    assert quantised.weights_bytes == pytest.approx(whole_layer.weights_bytes / 2, rel=1e-4)
    head = graph.block("head").operators
    full, partly = (block_memory(head, graph.dims, grid=RankGrid(), precision=precision) for precision in (BF16, FP8))
    assert full.weights_bytes == partly.weights_bytes


def test_two_all_reduces_a_layer() -> None:
    graph = model("llama-3.1-8b")
    adding = [operator.name for operator in graph.block("layer").operators if leaves_partial_sums(operator)]
    assert adding == ["o_proj", "down_proj"]
    assert [leaves_partial_sums(operator) for operator in graph.block("embedding").operators] == [True]


def test_vocabulary_is_padded_and_key_value_heads_are_copied() -> None:
    sizes = {**model("qwen3-32b").dims, "vocab": 151_937, BATCH: 1, SEQ: 1}
    graph = model("qwen3-32b")
    head = next(operator for operator in graph.block("head").operators if operator.name == "lm_head")
    assert local_sizes(head, sizes, RankGrid(tp=4))["vocab"] == 37_985
    attention = next(operator for operator in graph.block("layer").operators if operator.name == "attention")
    assert local_sizes(attention, sizes, RankGrid(tp=16))["kv_heads"] == 1
    assert divides(graph.dims, RankGrid(tp=16))
    assert not divides(graph.dims, RankGrid(tp=3))


def test_decode_reads_every_weight_once() -> None:
    graph = model("llama-3.1-70b")
    times = whole(graph, tp=8)
    weights_s = 2 * graph.parameters() / 8 / device("h100").memory_bytes_per_s
    assert weights_s < decode_s(times, 1) < 2.5 * weights_s
    assert decode_s(times, 16) < 1.3 * decode_s(times, 1)


def test_prefill_is_bound_by_compute() -> None:
    graph = model("llama-3.1-70b")
    layers = 2 * graph.parameters() * 4000 / device("h100").peak(DType.BF16)
    assert layers < prefill_s(whole(graph), 4000) < 2.0 * layers


def test_a_chunk_after_a_prefix_costs_the_attention_to_it() -> None:
    times = whole(model("llama-3.1-8b"))
    halves = prefill_s(times, 2048) + prefill_s(times, 2048, prefix=2048)
    assert prefill_s(times, 2048, prefix=2048) > prefill_s(times, 2048)
    assert halves == pytest.approx(prefill_s(times, 4096), rel=0.15)


def test_more_of_anything_never_takes_less() -> None:
    for precision in (BF16, FP8):
        times = whole(model("llama-3.1-8b"), tp=2, precision=precision)
        assert np.all(np.diff(times.tokens_s) >= 0)
        assert np.all(np.diff(times.logits_s) >= 0)
        assert np.all(np.diff(times.decode_s, axis=1) >= 0)
        assert np.all(np.diff(times.decode_s, axis=2) >= 0)


@pytest.mark.parametrize(("slower", "faster"), [("a100", "h100"), ("h100", "h200"), ("h200", "b200")])
def test_a_faster_device_is_never_slower(slower: str, faster: str) -> None:
    slow, fast = (whole(model("llama-3.1-8b"), on=name) for name in (slower, faster))
    assert prefill_s(fast, 4096) <= prefill_s(slow, 4096)
    for sequences in (1, 16, 128):
        assert decode_s(fast, sequences) <= decode_s(slow, sequences) * 1.02


def test_stages_add_up_to_the_whole_and_the_links_between_them() -> None:
    layers = tables(model("llama-3.1-8b"))
    one = pipeline([layers], [])
    embedding, (layer, count), head = layers
    link = topology(2)
    two = pipeline([[embedding, (layer, count // 2)], [(layer, count // 2), head]], [link])
    assert two.stages == 2
    sent = decode_s(two, 8) - decode_s(one, 8)
    assert 0.0 < sent < 1e-3
    assert prefill_s(two, 4096) > prefill_s(one, 4096)


def test_engine_time_falls_on_the_first_stage() -> None:
    layers = tables(model("llama-3.1-8b"))
    shares = {"boundary_elements": 4096, "links": [topology(2)], "precision": BF16, "table_range": RANGE}
    slow = replace(ENGINE_VLLM, step_s=1e-3)
    plain, timed = (step_times([layers, layers], engine=engine, **shares) for engine in (NO_ENGINE, slow))
    extra = timed.decode_step_s(np.array([10.0]), 100.0)[:, 0] - plain.decode_step_s(np.array([10.0]), 100.0)[:, 0]
    assert extra == pytest.approx([slow.step_s + 10 * slow.sequence_s, 0.0])


def test_cache_comes_in_whole_blocks() -> None:
    def fit(free_bytes: float, cache: CacheBytes) -> int:
        return cache.tokens_that_fit(free_bytes, sequences=4, step_tokens=100)

    assert fit(1000.0, CacheBytes(per_token=10.0)) == 96
    assert fit(-5.0, CacheBytes(per_token=10.0)) == 0
    assert fit(0.0, CacheBytes()) > 10**15
