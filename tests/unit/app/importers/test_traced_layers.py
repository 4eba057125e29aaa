"""Layers of traced graphs: found, cut, and planned as the model's configuration is."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace

import pytest

from meshwright.app.models.catalog import model
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.app.models.traced.layers import _runs, in_layers
from meshwright.app.models.traced.model import read_traced_graph
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Recompute, Space
from meshwright.solver.problem.graph import RESIDUAL, Block, BlockRun, ModelGraph
from meshwright.solver.problem.layer_dag import layer_dag
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training
from meshwright.solver.verify.check import check
from tests.unit.app.importers.traced_models import CONFIGS, DEEP, TRACES


def traced(name: str) -> ModelGraph:
    return read_traced_graph(json.loads(gzip.decompress((TRACES / f"{name}.json.gz").read_bytes()))).graph


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("llama", [("embedding", 1, 1), ("layer", 4, 11), ("head", 1, 3)]),
        ("llama-eager", [("embedding", 1, 1), ("layer", 2, 15), ("head", 1, 3)]),
        ("gpt2", [("embedding", 1, 3), ("layer", 3, 10), ("head", 1, 3)]),
        ("gpt2-xl", [("embedding", 1, 3), ("layer", 48, 10), ("head", 1, 3)]),
        ("llama-3.1-8b", [("embedding", 1, 1), ("layer", 32, 11), ("head", 1, 3)]),
        ("mixtral", [("embedding", 1, 1), ("layer", 2, 15), ("head", 1, 3)]),
        ("mixtral-batched", [("embedding", 1, 1), ("layer", 2, 15), ("head", 1, 3)]),
        ("mamba2", [("embedding", 1, 1), ("layer", 2, 7), ("head", 1, 3)]),
        ("qwen3-30b-a3b", [("embedding", 1, 1), ("layer", 48, 17), ("head", 1, 3)]),
        # The first layer of each stack has a table of relative positions beside what the others have.
        (
            "t5-11b",
            [
                ("embedding", 1, 1),
                ("layer", 1, 10),
                ("layer_2", 23, 10),
                ("between", 1, 1),
                ("between_2", 1, 1),
                ("layer_3", 1, 16),
                ("layer_4", 23, 16),
                ("head", 1, 3),
            ],
        ),
        # A decoder of other tokens than its encoder's has no stream that is known, so nothing of it is cut.
        ("t5", [("embedding", 1, 1), ("layer", 1, 10), ("layer_2", 1, 10), ("head", 1, 53)]),
    ],
)
def test_what_repeats_is_a_layer(name: str, runs: list[tuple[str, int, int]]) -> None:
    whole, cut = traced(name), in_layers(traced(name))
    assert [(run.block, run.repeat, len(cut.block(run.block).operators)) for run in cut.chain] == runs
    assert cut.parameters() == whole.parameters()
    assert cut.dims == whole.dims
    dag = layer_dag(cut)
    for layer, block in enumerate(cut.layers):
        reads = {tensor.name for operator in cut.block(block).operators for tensor in operator.inputs}
        assert (RESIDUAL in reads) == (dag.entries[layer] is not None)
        assert {cut.block(cut.layers[side]).output for side in dag.sides[layer]} <= reads


def test_layers_of_a_decoder_read_the_output_of_the_encoder_as_in_the_template() -> None:
    assert layer_dag(in_layers(traced("t5-11b"))) == layer_dag(model("t5-11b"))


@pytest.mark.parametrize("name", ["resnet", "vit"])
def test_what_has_no_stream_of_tokens_stays_whole(name: str) -> None:
    assert in_layers(traced(name)) == traced(name)


def test_a_weight_that_is_tied_to_one_of_the_second_layer_leaves_the_trace_whole() -> None:
    """Of a repeated block one copy is left, so that nothing can name the weights of another."""
    graph = traced("llama")
    (block,) = graph.blocks
    second = next(operator for operator in block.operators if operator.name.startswith("model.layers.1.input_layernorm"))
    last = block.operators[-3]
    tied = replace(last, weights=(replace(last.weights[0], tied_to=f"{block.name}/{second.name}/{second.weights[0].name}"),))
    operators = (*block.operators[:-3], tied, *block.operators[-2:])
    whole = replace(graph, blocks=(Block(block.name, operators, block.output),), chain=(BlockRun(block.name),))
    assert in_layers(whole) == whole


def test_layers_of_kinds_in_turn_are_one_block() -> None:
    """Two kinds that take turns, and a third that follows: (ab)(ab)(ab)ccc."""
    runs = _runs([9, 0, 1, 0, 1, 0, 1, 2, 2, 2, 8], [1] * 11, 0, 11)
    assert [(run.first, run.length, run.repeat) for run in runs] == [(0, 1, 1), (1, 2, 3), (7, 1, 3), (10, 1, 1)]


def test_a_trace_that_repeats_in_no_order_is_read_in_time_that_grows_with_its_size() -> None:
    draw = random.Random(0)
    kinds = [draw.randrange(3) for _ in range(5_000)]
    runs = _runs(kinds, [1] * len(kinds), 0, len(kinds))
    assert sum(run.length * run.repeat for run in runs) == len(kinds)
    assert len(runs) < 64


def planned(graph: ModelGraph, seq_len: int, *, nodes: int = 1, ep: int = 1) -> Plan:
    request = TrainingRequest(
        graph,
        Cluster((NodeGroup("node", node_type("dgx-h100"), nodes),)),
        TrainingWorkload("training", 16 * nodes, seq_len),
        search=Search(
            space=Space.FREE,
            tp=(1,),
            pp=(2,),
            ep=(ep,),
            microbatch=(1,),
            zero_stages=(1,),
            recompute=(Recompute.NONE,),
            schedules=(Schedule.ONE_F_ONE_B,),
        ),
    )
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert check(plan, request) == ()
    return plan


@pytest.mark.parametrize(("name", "seq_len"), [("gpt2-xl", 1024), pytest.param("llama-3.1-8b", 4096, marks=pytest.mark.slow)])
def test_a_trace_is_planned_as_its_configuration(name: str, seq_len: int) -> None:
    """The kernels between products are grouped by other rules, which is all that differs."""
    mine, theirs = planned(in_layers(traced(name)), seq_len), planned(model(name), seq_len)
    assert mine.certificate.objective == pytest.approx(theirs.certificate.objective, rel=5e-3)
    assert mine.certificate.status == theirs.certificate.status
    layers = [[span.count for span in stage.blocks if span.block == "layer"] for stage in record_of(mine).stages]
    assert sum(count for stage in layers for count in stage) == {"gpt2-xl": 48, "llama-3.1-8b": 32}[name]
    assert len(layers) == 2


def test_an_encoder_and_a_decoder_are_planned_as_those_of_their_configuration() -> None:
    mine, theirs = (planned(graph, 512) for graph in (in_layers(traced("t5-11b")), model("t5-11b")))
    assert mine.certificate.objective == pytest.approx(theirs.certificate.objective, rel=1e-4)
    counts = [[[span.count for span in stage.blocks] for stage in record_of(plan).stages] for plan in (mine, theirs)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("name", "seq_len"), [("mamba2", 64), pytest.param("mamba2-2.7b", 4096, marks=pytest.mark.slow)])
def test_scans_of_a_trace_are_planned_as_those_of_its_configuration(name: str, seq_len: int) -> None:
    config = read_huggingface_config({**CONFIGS, **DEEP}[name], name=name)
    mine, theirs = (planned(graph, seq_len) for graph in (in_layers(traced(name)), config))
    assert mine.certificate.objective == pytest.approx(theirs.certificate.objective, rel=1e-6)
    assert mine.certificate.status == theirs.certificate.status


@pytest.mark.parametrize("name", ["mixtral-8x7b", pytest.param("qwen3-30b-a3b", marks=pytest.mark.slow)])
def test_routed_experts_of_a_trace_are_planned_as_those_of_its_configuration(name: str) -> None:
    """Router, dispatch, products by expert and combination are the same operators over the same dims."""
    mine, theirs = (planned(graph, 4096, nodes=4, ep=8) for graph in (in_layers(traced(name)), model(name)))
    assert mine.certificate.objective == pytest.approx(theirs.certificate.objective, rel=1e-4)
    assert mine.certificate.status == theirs.certificate.status
