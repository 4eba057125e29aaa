"""Request documents: what is taken, what is refused, and how the refusal reads."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.app.base.errors import DocumentError
from meshwright.app.requests.files import FilesBeside
from meshwright.app.requests.limits import MAX_DEVICES, MAX_GLOBAL_BATCH, MAX_TRACE
from meshwright.app.requests.resolve import NoFiles, request_document, resolve_request
from meshwright.app.requests.workloads import read_counts, read_trace
from meshwright.costmodels.errors import InvalidInputError, WorkloadError
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.serving.engine_profile import Quantised, ServingEngine
from meshwright.costmodels.units import DType
from meshwright.solver.api import solve
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingWorkload
from meshwright.solver.problem.serving_load import EmpiricalLength, FixedLength, LognormalLength, TraceArrivals
from tests.support.requests_given import resolved, serving, tiny_graph, training


def refused(document: object) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        resolve_request(document, files=NoFiles())
    return caught.value


def fields_of(error: DocumentError) -> list[str]:
    return [fault.field for fault in error.fields]


def test_catalogue_references_become_records() -> None:
    request = resolved()
    assert request.model.parameters() == 8_030_261_248
    assert request.cluster.n_devices == 8
    assert request.objective is Objective.THROUGHPUT


def test_serving_lengths_may_be_fixed_or_lognormal() -> None:
    workload = resolved(serving()).workload
    assert isinstance(workload, ServingWorkload)
    assert workload.prompt_tokens == FixedLength(2000)
    assert workload.output_tokens == LognormalLength(300.0, 700.0)


@pytest.mark.parametrize(
    ("search", "engine"),
    [
        ({"launcher": "sglang"}, ServingEngine.SGLANG),
        ({"launcher": "tensorrt-llm"}, ServingEngine.TENSORRT_LLM),
        ({"launcher": "vllm"}, ServingEngine.VLLM),
        ({"engine": "sglang"}, ServingEngine.SGLANG),
        ({}, ServingEngine.VLLM),
    ],
)
def test_a_launcher_starts_its_own_engine(search: dict[str, str], engine: ServingEngine) -> None:
    assert resolved(serving(search=search)).search.engine is engine


def test_a_launcher_is_not_planned_for_another_engine() -> None:
    request = resolved(serving(search={"launcher": "sglang", "engine": "vllm"}))
    with pytest.raises(WorkloadError, match="starts another engine"):
        solve(request, stop=never_stop, progress=ignore_progress)


def test_groups_keep_their_order_and_names() -> None:
    groups = [{"name": "new", "node": "dgx-h100", "nodes": 2}, {"name": "old", "node": "dgx-a100", "nodes": 1}]
    cluster = resolved(training(cluster={"groups": groups})).cluster
    assert [(group.name, group.n_devices) for group in cluster.groups] == [("new", 16), ("old", 8)]


def test_lost_devices_take_their_share_of_the_network_with_them() -> None:
    group = {"name": "damaged", "node": "dgx-h100", "nodes": 2}
    whole = resolved(training(cluster={"groups": [group], "nodes_per_leaf": 2})).cluster
    left = resolved(training(cluster={"groups": [group | {"lost_devices": 1}]})).cluster
    assert (whole.n_devices, whole.nodes_per_leaf, left.n_devices, left.nodes_per_leaf) == (16, 2, 14, None)
    assert left.groups[0].node.inter.bytes_per_s == whole.groups[0].node.inter.bytes_per_s * 7 / 8


def test_inline_graph() -> None:
    request = resolved(training(model={"graph": tiny_graph(), "name": "renamed"}))
    assert request.model.parameters() == 4 * 2 * 64 * 256
    assert request.model.name == "renamed"


@pytest.mark.parametrize("document", [training(), serving(), training(model={"graph": tiny_graph()})])
def test_resolved_document_reads_back_to_the_same_request(document: dict[str, Any]) -> None:
    request = resolved(document)
    assert resolved(request_document(request)) == request


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"wrkload": 1}, "wrkload", "did you mean 'workload'?"),
        ({"schema": "meshwright.request/9"}, "schema", "meshwright.request/1"),
        ({"model": {"catalog": "llama-8b"}}, "model.catalog", "llama-3.1-8b"),
        ({"model": {}}, "model", "catalog, config, huggingface, graph"),
        ({"model": {"catalog": "llama-3.1-8b", "config": {}}}, "model", "exactly one source"),
        ({"model": {"config": {"model_type": "nonesuch"}}}, "model.config", "nonesuch"),
        ({"model": {"huggingface": "/etc/passwd"}}, "model.huggingface", "files can't be named"),
        ({"model": {"graph": "graph.json"}}, "model.graph", "files can't be named"),
        ({"cluster": {"catalog": "dgx-h10", "nodes": 1}}, "cluster.catalog", "dgx-h100"),
        ({"cluster": {"catalog": "dgx-h100", "nodes": 0}}, "cluster.nodes", "greater than 0"),
        ({"cluster": {"groups": []}}, "cluster", "at least one node group"),
        ({"cluster": {"catalog": "dgx-h100", "nodes": MAX_DEVICES}}, "cluster", "too many devices"),
        ({"cluster": {"groups": [{"name": "a", "node": "dgx", "nodes": 1}]}}, "cluster.groups.0.node", "unknown node type"),
        ({"cluster": {"groups": [{"name": "a", "node": "dgx-h100", "nodes": -1}]}}, "cluster.groups.0.nodes", "-1"),
        (
            {"cluster": {"groups": [{"name": "a", "node": "dgx-h100", "nodes": 1, "lost_devices": 8}]}},
            "cluster.groups.0.lost_devices",
            "no device left",
        ),
        ({"objective": "speed"}, "objective", "throughput"),
        ({"search": {"tp": [1, 0]}}, "search.tp.1", "greater than 0"),
        ({"search": {"zero_stages": [4]}}, "search", "0, 1, 2, 3"),
        ({"search": {"time_limit_s": 1e9}}, "search.time_limit_s", "at most 86400"),
        ({"slo": {"p95_ttft_ms": 100.0}}, "slo", "min_tokens_per_s"),
        ({"slo": {"min_tokens_per_s": float("nan")}}, "slo.min_tokens_per_s", "not finite"),
        ({"slo": {"min_tokens_per_s": 1e300}}, "slo.min_tokens_per_s", "out of range"),
        ({"workload": {"kind": "train"}}, "workload.kind", "'training', 'serving'"),
        ({"workload": {"kind": "training", "seq_len": 4}}, "workload.global_batch", "missing"),
        ({"workload": {"kind": "training", "global_batch": True, "seq_len": 4}}, "workload.global_batch", "integer"),
        ({"workload": {"kind": "training", "global_batch": "8", "seq_len": 4}}, "workload.global_batch", "integer"),
        (
            {"workload": {"kind": "training", "global_batch": MAX_GLOBAL_BATCH + 1, "seq_len": 4}},
            "workload.global_batch",
            "at most 1e+07",
        ),
    ],
)
def test_refusal_names_the_field_and_what_is_allowed(changes: dict[str, Any], field: str, said: str) -> None:
    error = refused(training(**changes))
    assert fields_of(error) == [field]
    assert said in str(error)


def test_every_fault_is_listed() -> None:
    error = refused(training(workload={"kind": "training", "global_batch": -1, "seq_len": 1.5, "sequence": 3}))
    assert fields_of(error) == ["workload.global_batch", "workload.seq_len", "workload.sequence"]
    assert "did you mean 'seq_len'?" in str(error)


def test_a_missing_field_with_one_value_is_told_with_it() -> None:
    document = training()
    del document["schema"], document["cluster"]
    told = str(refused(document))
    assert "add 'schema: meshwright.request/1'" in told and "add 'cluster'" in told


def test_union_without_a_tag_reports_the_branch_that_was_meant() -> None:
    workload = serving()["workload"] | {"prompt_tokens": {"fixed": 0}, "output_tokens": {"mean": 300, "p95": 200}}
    error = refused(serving(workload=workload))
    assert fields_of(error) == ["workload.prompt_tokens.fixed", "workload.output_tokens"]
    assert "mean < p95" in str(error)


def test_cyclic_graph_is_refused_with_its_nodes() -> None:
    graph = tiny_graph()
    graph["blocks"][0]["operators"][0]["inputs"].append({"name": "z", "dims": ["batch", "seq", "hidden"]})
    error = refused(training(model={"graph": graph}))
    assert fields_of(error) == ["model.graph.blocks.0"]
    assert "cycle" in str(error) and "down" in str(error)


def test_matmul_that_loses_a_dim_is_refused() -> None:
    graph = tiny_graph()
    graph["blocks"][0]["operators"][0]["outputs"][0]["dims"] = ["batch", "ffn"]
    error = refused(training(model={"graph": graph}))
    assert fields_of(error) == ["model.graph.blocks.0.operators.0"]
    assert "['seq']" in str(error)


def test_fault_deep_inside_an_inline_graph_has_its_path() -> None:
    graph = tiny_graph()
    graph["blocks"][0]["operators"][1]["kind"] = "magic"
    assert fields_of(refused(training(model={"graph": graph}))) == ["model.graph.blocks.0.operators.1.kind"]


def test_a_document_wrong_in_many_places_is_told_in_few() -> None:
    error = refused(training(search={"tp": [0] * 5000}))
    assert len(error.fields) == 21
    assert "more faults" in error.fields[-1].problem


@pytest.mark.parametrize("document", [None, 3, "text", [], [training()]])
def test_what_is_no_object_is_refused(document: object) -> None:
    assert "the document can't be used" in str(refused(document))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


# How long a busy machine takes to make an input says nothing of the code.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(field=st.sampled_from(["schema", "model", "cluster", "workload", "slo", "objective", "search"]), value=json_values)
def test_any_value_in_any_field_is_taken_or_refused_with_a_typed_error(field: str, value: Any) -> None:
    with suppress(InvalidInputError):
        resolve_request(training(**{field: value}), files=NoFiles())


def test_files_are_found_beside_the_request(tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text(json.dumps(tiny_graph()))
    request = resolve_request(training(model={"graph": "graph.json"}), files=FilesBeside(tmp_path))
    assert request.model.name == "tiny"


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as caught:
        resolve_request(training(model={"huggingface": "none.json"}), files=FilesBeside(tmp_path))
    assert fields_of(caught.value) == ["model.huggingface"]
    assert "No such file" in str(caught.value)


def with_arrivals(**arrivals: Any) -> dict[str, Any]:
    document = serving()
    document["workload"] = document["workload"] | {"arrivals": arrivals}
    return document


TRACE = {"process": "trace", "times_s": [0.0, 0.5, 2.0], "prompt_tokens": [10, 20, 30], "output_tokens": [1, 2, 3]}


DAY = {"seconds": 57_600.0, "requests_per_s": 4.0}


def traced(**changes: Any) -> dict[str, Any]:
    return without_lengths(with_arrivals(**(TRACE | changes)))


def without_lengths(document: dict[str, Any]) -> dict[str, Any]:
    del document["workload"]["prompt_tokens"], document["workload"]["output_tokens"]
    return document


SPECULATION = {
    "draft_tokens": 4,
    "acceptance": 0.7,
    "draft": {"method": "eagle", "relative_cost": 0.05, "memory_bytes": 1e9, "model": "org/draft"},
}


def test_only_requests_that_draft_tokens_have_a_speculation_in_their_document() -> None:
    assert "speculation" not in request_document(resolved(serving()))["workload"]
    drafting = serving() | {"workload": serving()["workload"] | {"speculation": SPECULATION}}
    assert request_document(resolved(drafting))["workload"]["speculation"] == SPECULATION


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"acceptance": 1.5}, "workload.speculation.acceptance"),
        ({"draft_tokens": 0}, "workload.speculation.draft_tokens"),
        ({"draft_tokens": 33}, "workload.speculation.draft_tokens"),
        ({"draft": {"method": "eagle"}}, "workload.speculation.draft.relative_cost"),
        ({"draft": {"method": "guess", "relative_cost": 0.1}}, "workload.speculation.draft.method"),
    ],
)
def test_faults_of_a_speculation_are_named(change: dict[str, Any], field: str) -> None:
    document = serving() | {"workload": serving()["workload"] | {"speculation": SPECULATION | change}}
    with pytest.raises(DocumentError) as caught:
        resolved(document)
    assert any(name.endswith(field.removeprefix("workload.")) for name in fields_of(caught.value))


@pytest.mark.parametrize(
    "document",
    [
        with_arrivals(process="gamma", requests_per_s=2.0, cv=3.0),
        with_arrivals(process="closed", concurrency=16),
        with_arrivals(process="closed", concurrency=16, requests_per_client=10),
        with_arrivals(process="schedule", intervals=[DAY, {"seconds": 28_800.0, "requests_per_s": 0.0}]),
        with_arrivals(process="trace", times_s=[0.0, 0.5, 2.0]),
        traced(),
        serving() | {"workload": serving()["workload"] | {"prompt_tokens": {"empirical": [5, 9]}, "prefix_hit_ratio": 0.5}},
        serving() | {"workload": serving()["workload"] | {"speculation": SPECULATION}},
        serving() | {"workload": serving()["workload"] | {"router": "least_loaded"}},
    ],
)
def test_every_way_to_arrive_reads_back(document: dict[str, Any]) -> None:
    request = resolved(document)
    assert resolve_request(request_document(request), files=NoFiles()) == request


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (with_arrivals(process="gamma", requests_per_s=2.0, cv=0.0), "workload.arrivals.cv"),
        (serving() | {"workload": serving()["workload"] | {"router": "nearest"}}, "workload.router"),
        (with_arrivals(process="closed", concurrency=10**6), "workload.arrivals.concurrency"),
        (with_arrivals(process="closed", concurrency=1000, requests_per_client=1001), "workload.arrivals.requests_per_client"),
        (with_arrivals(process="schedule", intervals=[]), "workload.arrivals.intervals"),
        (with_arrivals(process="schedule", intervals=[DAY | {"requests_per_s": 0.0}]), "workload.arrivals"),
        (with_arrivals(process="schedule", intervals=[DAY] * 1001), "workload.arrivals.intervals"),
        (without_lengths(with_arrivals(process="trace", times_s=[0.0, 0.5])), "workload"),
        (traced(times_s=[0.0, 0.5]), "workload.arrivals"),
        (traced(times_s=[0.0, 3.0, 2.0]), "workload.arrivals"),
        (traced(times_s=[1.0, 1.0, 1.0]), "workload.arrivals"),
        (with_arrivals(**TRACE), "workload"),
        (without_lengths(with_arrivals(process="poisson", requests_per_s=1.0)), "workload"),
        (with_arrivals(process="trace", file="trace.csv"), "workload.arrivals.file"),
    ],
)
def test_impossible_arrivals_are_refused_at_their_field(document: dict[str, Any], field: str) -> None:
    assert fields_of(refused(document)) == [field]


def test_only_runs_from_their_beginning_say_how_many_requests_a_client_sends() -> None:
    arrivals = request_document(resolved(with_arrivals(process="closed", concurrency=16)))["workload"]["arrivals"]
    assert arrivals == {"process": "closed", "concurrency": 16}


def test_times_alone_draw_the_lengths_of_the_workload() -> None:
    document = with_arrivals(process="trace", times_s=[0.0, 0.5, 2.0])
    document["workload"] |= {"prompt_tokens": {"empirical": [5, 9]}, "output_tokens": {"fixed": 3}}
    workload = resolved(document).workload
    assert isinstance(workload, ServingWorkload) and isinstance(workload.arrivals, TraceArrivals)
    assert workload.arrivals.times_s == (0.0, 0.5, 2.0)
    assert set(workload.arrivals.prompt_tokens) <= {5, 9} and workload.arrivals.output_tokens == (3, 3, 3)
    assert workload == resolved(document).workload


def test_a_trace_and_counts_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("prompt,time,output\n10,0.0,1\n\n20,0.5,2\n30,2.0,3\n")
    (tmp_path / "counts.txt").write_text("7\n9\n")
    files = FilesBeside(tmp_path)
    document = without_lengths(with_arrivals(process="trace", file="trace.csv"))
    assert resolve_request(document, files=files) == resolved(traced())
    document = serving()
    document["workload"] = document["workload"] | {"prompt_tokens": {"file": "counts.txt"}}
    workload = resolve_request(document, files=files).workload
    assert isinstance(workload, ServingWorkload)
    assert workload.prompt_tokens == EmpiricalLength((7, 9))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "does not have its columns"),
        ("time,prompt\n0,1\n", "does not have its columns"),
        ("time,prompt,output\n0,1\n", "line 2 of the trace has 2 values"),
        ("time,prompt,output\n0,1,1\n1,x,1\n", "line 3: no token count"),
        ("time,prompt,output\n0,0,1\n", "line 2: no token count"),
        ("time,prompt,output,cached\n0,9,1,-1\n", "line 2: no token count"),
        ("time,prompt,output,cached\n0,9,1,0\n1,9,1,10\n", "more cached tokens"),
        ("time,prompt,output\nnan,1,1\n", "line 2: no time"),
        ("time,prompt,output\n-1,1,1\n", "line 2: no time"),
        ("time,prompt,output\n0,1,1\n", "two requests"),
        ('time,prompt,output\n0,"1,1\n', "not CSV"),
    ],
)
def test_faulty_traces_name_the_line(text: str, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        read_trace(text)


def test_a_trace_says_what_was_cached() -> None:
    trace = read_trace("cached,time,prompt,output\n0,0,9,1\n4,1,9,1\n")
    assert (trace.prompt_tokens, trace.cached_tokens) == ((9, 9), (0, 4))
    assert read_trace("time,prompt,output\n0,9,1\n1,9,1\n").cached_tokens == ()


def test_a_trace_has_an_end() -> None:
    with pytest.raises(InvalidInputError, match="too many lines"):
        read_counts("1\n" * (MAX_TRACE + 1))


@pytest.mark.parametrize(
    ("model", "stated", "expected"),
    [
        ({"catalog": "deepseek-v3"}, {}, (DType.FP8, WeightFormat.FP8_BLOCK, Quantised.PROJECTIONS)),
        ({"huggingface": "openai/gpt-oss-120b"}, {}, (DType.FP4, WeightFormat.MXFP4, Quantised.FEED_FORWARD)),
        ({"huggingface": "moonshotai/Kimi-K2.5"}, {}, (DType.BF16, WeightFormat.INT4, Quantised.FEED_FORWARD)),
        ({"huggingface": "Qwen/Qwen3-32B-FP8"}, {}, (DType.FP8, WeightFormat.FP8_BLOCK, Quantised.PROJECTIONS)),
        ({"catalog": "llama-3.1-8b"}, {}, (DType.BF16, WeightFormat.BF16, Quantised.PROJECTIONS)),
        ({"catalog": "deepseek-v3"}, {"precision": "bf16"}, (DType.BF16, WeightFormat.BF16, Quantised.PROJECTIONS)),
        ({"catalog": "deepseek-v3"}, {"weights": "int4"}, (DType.BF16, WeightFormat.INT4, Quantised.PROJECTIONS)),
    ],
)
def test_weights_are_those_of_the_checkpoint_unless_the_request_says_others(
    model: dict[str, str], stated: dict[str, str], expected: tuple[DType, WeightFormat, Quantised]
) -> None:
    work = resolved(serving(model=model, workload=_without_formats() | stated)).workload
    assert isinstance(work, ServingWorkload)
    assert (work.precision, work.weight_format, work.quantised) == expected


def test_a_checkpoint_that_a_device_cannot_multiply_names_the_way_out() -> None:
    error = refused(serving(model={"catalog": "deepseek-v3"}, cluster="32xV100-16GB", workload=_without_formats()))
    assert fields_of(error) == ["workload.precision"]
    assert "precision: bf16" in str(error.fields[0].remedy)


def test_an_unknown_quantisation_asks_for_the_precision() -> None:
    config = {"model_type": "llama", "quantization_config": {"quant_method": "hqq"}}
    error = refused(serving(model={"config": config}, workload=_without_formats()))
    assert fields_of(error) == ["workload.precision"]
    resolved(serving(model={"config": config}, workload=_without_formats() | {"precision": "bf16"}))
    resolved(training(model={"config": config}))


_UNKNOWN = {
    "model_type": "newthing",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


@pytest.mark.parametrize(
    ("more", "parameters", "active"),
    [
        ({}, 8_030_261_248, 8_030_261_248),
        # Mixtral-8x7B's and DeepSeek's words for experts.
        ({"vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}, 46_702_792_704, 12_879_925_248),
        (
            {
                "num_hidden_layers": 2,
                "n_routed_experts": 4,
                "moe_topk": 1,
                "moe_intermediate_size": 8,
                "n_shared_experts": 1,
                "first_k_dense_replace": 1,
            },
            2 * 128256 * 4096 + 4096 + 2 * (41_943_040 + 8192) + 3 * 4096 * 14336 + 4 * 4096 + 5 * 3 * 4096 * 8,
            2 * 128256 * 4096 + 4096 + 2 * (41_943_040 + 8192) + 3 * 4096 * 14336 + 4 * 4096 + 2 * 3 * 4096 * 8,
        ),
    ],
)
def test_an_unknown_kind_is_read_as_a_decoder_where_the_request_says_so(
    more: dict[str, int], parameters: int, active: int
) -> None:
    config = _UNKNOWN | more
    assert fields_of(refused(training(model={"config": config}))) == ["model.config"]
    model = resolved(training(model={"config": config, "assume_decoder": True})).model
    assert model.name.endswith("(assumed decoder of unstated size)")
    assert (model.parameters(), model.active_parameters()) == (parameters, active)


def test_a_known_kind_is_read_exactly_all_the_same() -> None:
    assert (
        resolved(training(model={"config": _UNKNOWN | {"model_type": "olmo2"}, "assume_decoder": True})).model.name == "model"
    )


def _without_formats() -> dict[str, Any]:
    """The workload of ``serving`` that says nothing of its weights."""
    return {key: value for key, value in serving()["workload"].items() if key not in ("precision", "weights", "quantised")}
