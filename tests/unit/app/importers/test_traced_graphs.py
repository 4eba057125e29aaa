"""Traced graphs: the same model as the template's, whatever its layers are called, and errors that say what to do."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.app.base.errors import DocumentError
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.app.models.traced.model import BLOCK, read_traced_graph
from meshwright.app.requests.files import FilesBeside
from meshwright.app.requests.resolve import resolve_request
from meshwright.costmodels.cluster.cluster import TIMED_ALONE
from meshwright.costmodels.errors import InvalidInputError, ModelError, WorkloadError
from meshwright.costmodels.model.dims import BATCH, EXPERT_FFN, EXPERTS, HEADS, HIDDEN, SEQ, TOP_K
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, forward_flops
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.sharding_problem.solve import SolveStatus
from meshwright.solver.sharding_problem.work import WorkLimit
from meshwright.solver.strategies.graph_costs import GraphCosts, communication
from meshwright.solver.strategies.operator_graph import Ties, unfolded
from meshwright.solver.strategies.pricing import TrainingStep
from meshwright.solver.strategies.solve import GraphSharding, shard_graph
from meshwright.solver.training.planner import plan_training
from tests.support.requests_given import training
from tests.unit.app.importers.traced_models import CONFIGS, DECODER_SEQ_LEN, DEEP, SEQ_LEN, TOKENS, TRACES, program
from tests.unit.solver.strategies.meshes import mesh_of


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress((TRACES / f"{name}.json.gz").read_bytes()))
    return found


def traced(name: str) -> ModelGraph:
    return read_traced_graph(document(name)).graph


def template(name: str) -> ModelGraph:
    return read_huggingface_config({**CONFIGS, **DEEP}[name], name=name)


def operators(graph: ModelGraph, kind: OperatorKind) -> list[Operator]:
    return [operator for operator in graph.block(BLOCK).operators if operator.kind is kind]


def sharded(graph: ModelGraph, *, seq_len: int = SEQ_LEN) -> tuple[GraphCosts, GraphSharding]:
    """The sharding over a mesh on which it is no near tie: kernels move memory as fast as when timed alone."""
    mesh = mesh_of(2, 4, sustained=TIMED_ALONE)
    costs = GraphCosts(unfolded(graph, batch=32, seq_len=seq_len), mesh, TrainingStep(), Ties.EQUAL_BLOCKS)
    return costs, shard_graph(costs, memory_bytes=None, stop=WorkLimit(1e9))


SMALL = ["llama", "llama-eager", "gpt2", "t5", "mixtral", "vit", "mamba2", "mamba2-padded"]


@pytest.mark.parametrize("name", [*SMALL, "llama-3.1-8b", "gpt2-xl", "t5-11b", "mamba2-2.7b"])
def test_parameters_are_those_of_the_template(name: str) -> None:
    assert traced(name).parameters() == template(name).parameters()


def test_resnet_has_its_parameters() -> None:
    # transformers 5.23: sum(p.numel() for p in ResNetForImageClassification(ResNetConfig(depths=[2, 2, 2, 2])).parameters())
    assert traced("resnet").parameters() == 13_950_274


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_trace_is_sharded_as_its_template(name: str) -> None:
    (costs, found), (own_costs, own) = (sharded(graph) for graph in (traced(name), template(name)))
    assert found.status is own.status is SolveStatus.OPTIMAL
    assert found.step_s is not None and own.step_s is not None and found.choices is not None and own.choices is not None
    assert found.step_s == pytest.approx(own.step_s, rel=0.02)
    assert found.peak_bytes == pytest.approx(own.peak_bytes, rel=0.01)
    assert sent(costs, found) == pytest.approx(sent(own_costs, own), rel=1e-3)


def sent(costs: GraphCosts, found: GraphSharding) -> dict[str, float]:
    """Bytes that a device sends in a step, by purpose."""
    assert found.choices is not None
    totals: dict[str, float] = {}
    for traffic in communication(costs, found.choices):
        totals[traffic.purpose] = totals.get(traffic.purpose, 0.0) + traffic.bytes_sent
    return totals


def test_work_is_that_of_the_template() -> None:
    for name in ("llama", "gpt2"):
        flops = []
        for graph in (traced(name), template(name)):
            sizes = {**graph.dims, BATCH: 2, SEQ: SEQ_LEN}
            flops.append(
                sum(
                    forward_flops(operator, sizes)
                    for layer in graph.layers
                    for operator in graph.block(layer).operators
                    if operator.kind in (OperatorKind.MATMUL, OperatorKind.ATTENTION)
                )
            )
        assert flops[0] == flops[1]


def test_equal_layers_are_found_and_a_deep_model_is_solved_once() -> None:
    assert len(document("t5-11b")["operators"]) > 2500
    graph = traced("t5-11b")
    costs, found = sharded(graph, seq_len=TOKENS["t5-11b"][0])
    assert found.status is SolveStatus.OPTIMAL
    assert len(graph.block(BLOCK).operators) > 500
    assert len(costs.folding.members) < 60
    assert max(len(members) for members in costs.folding.members) >= 23


def test_an_encoder_decoder_attends_to_tokens_of_two_lengths() -> None:
    graph = traced("t5")
    attention = operators(graph, OperatorKind.ATTENTION)
    assert [a.mask for a in attention] == [AttentionMask.FULL] * 2 + [AttentionMask.CAUSAL, AttentionMask.FULL] * 3
    sizes = {**graph.dims, BATCH: 2, SEQ: SEQ_LEN}
    cross = attention[3]
    query, key, _ = cross.inputs
    assert sorted(sizes[dim] for dim in query.dims) == sorted((2, DECODER_SEQ_LEN, 8, 32))
    assert sorted(sizes[dim] for dim in key.dims) == sorted((2, SEQ_LEN, 8, 32))
    # Scores and their product with the values: 2 x 2 FLOPs a query, key, head and its own dim.
    assert forward_flops(cross, sizes) == 4 * 2 * DECODER_SEQ_LEN * SEQ_LEN * 8 * 32


def test_a_table_of_relative_positions_is_a_weight_of_the_first_attention_of_its_stack() -> None:
    graph = traced("t5")
    tables = [[weight.dims for weight in a.weights] for a in operators(graph, OperatorKind.ATTENTION)]
    assert [len(found) for found in tables] == [1, 0, 1, 0, 0, 0, 0, 0]
    assert tables[0] == tables[2]
    assert tables[0][0][1] == HEADS
    assert graph.dims[tables[0][0][0]] == 32
    assert len(operators(graph, OperatorKind.EMBEDDING)) == 2


def test_a_table_whose_bias_is_read_elsewhere_too_is_stored_once() -> None:
    changed = document("t5")
    at, call = next(each for each in enumerate(changed["operators"]) if "scaled_dot" in each[1]["op"])
    changed["parameters"].append({"tensor": ["added", "float32", 10, SEQ_LEN], "name": "added"})
    reads = {"op": "aten.linear.default", "args": [call["args"][3], {"tensor": "added"}], "kwargs": {}}
    changed["operators"].insert(at + 1, reads | {"outputs": [["more", "float32", 1, 8, SEQ_LEN, 10]]})
    assert read_traced_graph(changed).graph.parameters() == template("t5").parameters() + 10 * SEQ_LEN


def test_a_bias_of_scores_that_all_heads_share_stays_a_lookup() -> None:
    changed = document("llama")
    changed["parameters"].append({"tensor": ["table", "float32", 100, SEQ_LEN], "name": "table"})
    changed["constants"].append(["places", "int64", SEQ_LEN])
    at, call = next(each for each in enumerate(changed["operators"]) if "scaled_dot" in each[1]["op"])
    call["args"][3] = {"tensor": "bias"}
    lookup = {"op": "aten.embedding.default", "args": [{"tensor": "table"}, {"tensor": "places"}], "kwargs": {}}
    changed["operators"].insert(at, lookup | {"outputs": [["bias", "float32", SEQ_LEN, SEQ_LEN]]})
    graph = read_traced_graph(changed).graph
    assert not any(a.weights for a in operators(graph, OperatorKind.ATTENTION))
    assert [weight.name for o in operators(graph, OperatorKind.EMBEDDING) for weight in o.weights][-1] == "table"


@pytest.mark.slow
def test_attention_written_out_is_two_products_and_a_softmax() -> None:
    graph = traced("llama-eager")
    products = operators(graph, OperatorKind.PRODUCT)
    assert not operators(graph, OperatorKind.ATTENTION)
    assert len(products) == 4
    sizes = {**graph.dims, BATCH: 2, SEQ: SEQ_LEN}
    for product in products:
        assert forward_flops(product, sizes) == 2 * 2 * SEQ_LEN * SEQ_LEN * CONFIGS["llama"]["hidden_size"]
    costs, found = sharded(graph)
    assert found.status is SolveStatus.OPTIMAL
    scores = next(node for node in costs.graph.nodes if node.operator.kind is OperatorKind.PRODUCT)
    rules = {rule.dim for rule in costs.priced(costs.graph.nodes.index(scores)).placed.rules}
    assert {BATCH, SEQ} <= rules, "queries and keys of scores are two dims"
    assert len(rules) >= 4


def test_a_patch_embedding_is_a_product_and_kernels_that_overlap_are_not() -> None:
    assert [o.name for o in operators(traced("vit"), OperatorKind.CONVOLUTION)] == []
    resnet = operators(traced("resnet"), OperatorKind.CONVOLUTION)
    assert resnet
    sizes = {**traced("resnet").dims, BATCH: 2, SEQ: 1}
    # 7 x 7 kernels over 3 channels, 64 outputs, 112 x 112 positions.
    assert forward_flops(resnet[0], sizes) == 2 * 2 * 112 * 112 * 64 * 3 * 7 * 7
    _, found = sharded(traced("resnet"))
    assert found.status is SolveStatus.OPTIMAL


def test_names_of_tensors_and_modules_change_nothing() -> None:
    changed = document("llama")
    text = json.dumps(changed).replace("model.layers", "net.blocks").replace('"linear', '"product').replace("mul_", "times_")
    (_, found), (_, renamed) = (sharded(read_traced_graph(d).graph) for d in (changed, json.loads(text)))
    assert found.step_s == renamed.step_s


@pytest.mark.parametrize("name", ["mixtral", "mixtral-batched"])
def test_experts_that_a_router_picks_are_products_by_expert(name: str) -> None:
    """Rows sorted by experts, or each row with a copy of its expert's matrices: the same products as in the template."""
    mine, theirs = traced(name), template("mixtral")
    for graph in (mine, theirs):
        products = [o for block in graph.blocks for o in block.operators if o.kind is OperatorKind.MATMUL and o.routed_dims]
        assert {o.routed_dims for o in products} == {(EXPERTS,)}
        up, down = products[:2]
        assert [tensor.dims for tensor in up.outputs] == [(BATCH, SEQ, TOP_K, EXPERT_FFN)] * 2
        assert down.outputs[0].dims == (BATCH, SEQ, TOP_K, HIDDEN)
    assert mine.active_parameters() == theirs.active_parameters()


def one_expert() -> dict[str, Any]:
    faulty = document("mixtral")
    picked = next(call for call in faulty["operators"] if call["op"].startswith("aten.topk"))
    picked["outputs"] = [[*tensor[:-1], 1] for tensor in picked["outputs"]]
    return faulty


def no_router() -> dict[str, Any]:
    """The ends of groups are given from outside, by no router."""
    faulty = document("mixtral")
    grouped = next(call for call in faulty["operators"] if "grouped_mm" in call["op"])
    faulty["inputs"].append(["ends", "int32", 8])
    grouped["args"][2] = {"tensor": "ends"}
    return faulty


def other_rows() -> dict[str, Any]:
    """The router's choices pick rows of a tensor that is not its tokens."""
    faulty = document("mixtral")
    call = next(c for c in faulty["operators"] if c["op"].startswith("aten.index.") and c["module"].endswith("experts"))
    faulty["inputs"].append(["others", "float32", 128, 128])
    call["args"][0] = {"tensor": "others"}
    return faulty


@pytest.mark.parametrize(
    ("fault", "said"),
    [(one_expert, "picks one place alone"), (no_router, "no router picks"), (other_rows, "not the router's tokens")],
)
def test_routing_that_is_not_known_says_what_to_do(fault: Callable[[], dict[str, Any]], said: str) -> None:
    with pytest.raises(ModelError, match=said) as raised:
        read_traced_graph(fault())
    assert "template" in str(raised.value)


def of_mixer(graph: ModelGraph) -> list[tuple[object, ...]]:
    """What a layer with a scan consists of, but for names of its operators and of the dim of its kernels."""
    block = next(block for block in graph.blocks if any(o.kind is OperatorKind.SCAN for o in block.operators))
    operators = block.operators[-11:-3] if block.name == BLOCK else block.operators
    kernel = {dim for o in operators if o.kind is OperatorKind.CONVOLUTION for dim in o.weights[0].dims[-1:]}
    return [
        (
            o.kind,
            [tensor.dims for tensor in (*o.inputs, *o.outputs)],
            [tuple(dim for dim in weight.dims if dim not in kernel) for weight in o.weights],
            [each.elements({**graph.dims, BATCH: 1, SEQ: 1}) for each in o.weights],
            len(o.saved),
            o.chunk,
        )
        for o in operators
        if o.kind is not OperatorKind.ELEMENTWISE
    ]


@pytest.mark.parametrize("name", ["mamba2", "mamba2-padded"])
def test_a_scan_in_chunks_is_one_operator_as_in_the_template(name: str) -> None:
    """So are the convolution of x, B and C with its function, and the norm in groups with its gate."""
    kinds = OperatorKind.MATMUL, OperatorKind.CONVOLUTION, OperatorKind.SCAN, OperatorKind.NORM, OperatorKind.MATMUL
    mine, theirs = (of_mixer(graph)[-5:] for graph in (traced(name), template(name)))
    assert tuple(kind for kind, *_ in mine) == kinds
    assert mine == theirs


def changed_call(op: str, place: int, *, to: str | None = None, args: Mapping[int, Any] | None = None) -> dict[str, Any]:
    """The trace of a Mamba-2 with one call changed: its operator, or its arguments by place."""
    faulty = document("mamba2")
    call = [call for call in faulty["operators"] if call["op"].startswith(f"aten.{op}.")][place]
    call["op"] = to or call["op"]
    for at, argument in (args or {}).items():
        call["args"][at] = argument
    return faulty


@pytest.mark.parametrize(
    "fault",
    [
        {"op": "einsum", "place": 0, "args": {0: "bclhn,bcshn->bcslh"}},
        {"op": "tril", "place": 0, "args": {1: 0}},
        {"op": "cumsum", "place": 0, "args": {1: -2}},
        {"op": "exp", "place": 0, "to": "aten.sigmoid.default"},
        {"op": "pad", "place": 0, "args": {1: [0, 0, 0, 0, 2, 0, 0, 0]}},
        {"op": "masked_fill", "place": 1, "args": {2: 0}},
    ],
)
def test_what_differs_from_a_scan_in_chunks_stays_as_it_is_written(fault: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"aten\.einsum\.default \(5 x, first in backbone\.layers\.0\.mixer\)"):
        read_traced_graph(changed_call(**fault))


def test_a_scan_of_which_something_inside_is_read_stays_as_it_is_written() -> None:
    faulty = document("mamba2")
    states = next(
        call for call in faulty["operators"] if call["op"].startswith("aten.select.") and "einsum" in str(call["args"])
    )
    name, *info = states["outputs"][0]
    for source, target in ((name, "less"), ("less", "more")):
        made = {"op": "aten.neg.default", "args": [{"tensor": source}], "outputs": [[target, *info]]}
        faulty["operators"].append(made)
    with pytest.raises(ModelError, match=r"aten\.einsum"):
        read_traced_graph(faulty)


def test_a_convolution_that_sees_later_tokens_keeps_its_own_tokens() -> None:
    for start, is_causal in ((0, True), (3, False)):
        graph = read_traced_graph(changed_call("slice", 0, args={2: start, 3: start + SEQ_LEN})).graph
        assert (SEQ in operators(graph, OperatorKind.CONVOLUTION)[0].outputs[0].dims) == is_causal


def test_tied_weights_are_stored_once() -> None:
    graph = traced("gpt2")
    tied = graph.tied_weights()
    assert len(tied) == 1
    assert tied[0][2].tied_to is not None and "wte" in tied[0][2].tied_to


def test_unknown_operators_are_all_named_with_their_place() -> None:
    faulty = document("llama")
    linear = [call for call in faulty["operators"] if call["op"] == "aten.linear.default"]
    linear[3]["op"], linear[5]["op"] = "mylib.fused_linear.default", "aten.fft_rfft.default"
    with pytest.raises(ModelError) as raised:
        read_traced_graph(faulty)
    assert "mylib.fused_linear.default (1 x, first in model.layers.0.self_attn.o_proj)" in str(raised.value)
    assert "aten.fft_rfft.default" in str(raised.value)
    assert "run_decompositions" in str(raised.value)


def faults() -> dict[str, Any]:
    unread, cyclic, sizes, shapes = (copy.deepcopy(document("gpt2")) for _ in range(4))
    unread["parameters"] = unread["parameters"][1:]
    cyclic["operators"].reverse()
    sizes["parameters"][0]["tensor"][2] = -1
    shapes["operators"] = [
        call | {"outputs": [[*call["outputs"][0][:2], 7]]} if "view" in call["op"] and call["module"] else call
        for call in shapes["operators"]
    ]
    return {"a parameter is missing": unread, "reversed": cyclic, "a negative size": sizes, "a view of other sizes": shapes}


@pytest.mark.parametrize("fault", ["a parameter is missing", "reversed", "a negative size", "a view of other sizes"])
def test_faulty_traces_are_refused(fault: str) -> None:
    with pytest.raises(ModelError):
        read_traced_graph(faults()[fault])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_change_of_a_trace_is_worse_than_an_error(data: st.DataObject) -> None:
    faulty = document(data.draw(st.sampled_from(["gpt2", "vit", "llama-eager", "mamba2"])))
    call = data.draw(st.sampled_from(faulty["operators"]))
    field = data.draw(st.sampled_from(["args", "outputs", "op"]))
    values: list[object] = [0, -1, 7, None, "a", 1.5, [], {"tensor": "nope"}, {"tensor": 3}, [[]], 10**9]
    if field == "op":
        call["op"] = data.draw(st.sampled_from(faulty["operators"]))["op"]
    elif call[field]:
        call[field][data.draw(st.integers(0, len(call[field]) - 1))] = data.draw(st.sampled_from(values))
    with contextlib.suppress(InvalidInputError):
        read_traced_graph(faulty)


def test_fields_that_are_wrong_are_named() -> None:
    for change in ({"schema": "meshwright.traced-graph/2"}, {"operators": 3}, {"unknown": 1}):
        with pytest.raises(DocumentError):
            read_traced_graph(document("gpt2") | change)


def request(name: str, seq_len: int) -> dict[str, Any]:
    workload = training()["workload"] | {"seq_len": seq_len, "global_batch": 16}
    return training(model={"graph": f"{name}.json.gz"}, workload=workload)


def test_a_request_names_the_file_of_a_trace() -> None:
    resolved = resolve_request(request("llama", SEQ_LEN), files=FilesBeside(TRACES))
    assert resolved.model.parameters() == template("llama").parameters()


def test_a_trace_has_one_sequence_length() -> None:
    with pytest.raises(DocumentError, match="traced with another sequence length"):
        resolve_request(request("llama", 2 * SEQ_LEN), files=FilesBeside(TRACES))


@pytest.mark.parametrize(("name", "seq_len"), [("vit", 197), ("resnet", 1), ("t5", SEQ_LEN)])
def test_a_trace_without_a_stream_of_tokens_is_sharded_not_staged(name: str, seq_len: int) -> None:
    """The decoder of T5 here writes another number of tokens than its encoder reads."""
    resolved = resolve_request(request(name, seq_len), files=FilesBeside(TRACES))
    assert isinstance(resolved, TrainingRequest)
    with pytest.raises(WorkloadError, match="shard --model"):
        plan_training(resolved, stop=never_stop, progress=ignore_progress)


def test_loosened_ties_are_never_slower() -> None:
    graph = traced("gpt2")
    steps = []
    for ties in (Ties.EQUAL_BLOCKS, Ties.NONE):
        costs = GraphCosts(unfolded(graph, batch=32, seq_len=SEQ_LEN), mesh_of(2, 4), TrainingStep(), ties)
        found = shard_graph(costs, memory_bytes=None, stop=WorkLimit(1e9))
        assert found.status is SolveStatus.OPTIMAL and found.step_s is not None
        steps.append(found.step_s)
    assert steps[1] <= steps[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_export_writes_the_traces_of_this_folder(name: str) -> None:
    pytest.importorskip("torch", reason="needs torch and transformers (pip install torch transformers)")
    pytest.importorskip("transformers", reason="needs transformers (pip install transformers)")
    from meshwright.app.models.traced.torch_export import traced_document

    made = traced_document(program(name), name=name)
    assert {**made, "producer": ""} == {**document(name), "producer": ""}
