"""Flags of vLLM, and what its own parser and engine configuration make of them."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.app.launching.exporters import export
from meshwright.app.launching.launchers.vllm import memory_utilisation
from meshwright.app.launching.parts.served import longest_that_fits
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.serving.speculation import Draft, DraftMethod, Speculation
from meshwright.costmodels.units import DType
from meshwright.solver.answer.layouts import Kinds, Pools, PrefillWorkers, WorkerKind
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import DeviceRange
from meshwright.solver.problem.choices import ServingMode
from meshwright.solver.problem.graph import Hyperparameters
from meshwright.solver.problem.request import PlanRequest
from tests.support.serving_layouts import replicas_of
from tests.unit.app.exporters.plans import arguments, flags, serving
from tests.unit.app.exporters.real_tools import ask

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}


def test_replicas_of_one_node_share_a_server() -> None:
    one = flags(export(*serving(replicas=2, tp=4), "vllm"))
    assert one["--data-parallel-size"] == ("2",)
    spread = export(*serving(replicas=4, tp=4), "vllm")
    assert "--data-parallel-size" not in flags(spread)
    assert any("start it 4 times" in line for line in spread.assumptions)


def test_a_replica_larger_than_a_node_runs_on_all_its_nodes() -> None:
    result = export(*serving(replicas=1, tp=8, pp=2), "vllm")
    assert (flags(result)["--nnodes"], flags(result)["--node-rank"]) == (("2",), ("$NODE_RANK",))
    assert any("--headless" in line for line in result.assumptions)


def test_uneven_stages_are_named_by_their_variable() -> None:
    assert "VLLM_PP_LAYER_PARTITION=39,41" in arguments(export(*serving(tp=4, pp=2, layers=[39, 41]), "vllm"))
    assert "VLLM_PP" not in export(*serving(tp=4, pp=2), "vllm").command
    with pytest.raises(ExportError, match="layer on every pipeline stage"):
        export(*serving(tp=4, pp=2, layers=[0, 80]), "vllm")


def test_the_longest_request_is_the_models_own_where_it_fits_the_cache() -> None:
    plan, request = serving()
    assert "--max-model-len" not in flags(export(plan, request, "vllm"))
    fits = longest_that_fits(plan.layout.workers, request)
    longer = replace(request, model=replace(request.model, hyperparameters=Hyperparameters(positions=fits + 1)))
    assert flags(export(plan, longer, "vllm"))["--max-model-len"] == (str(fits),)
    unknown = export(plan, replace(request, model=replace(request.model, hyperparameters=None)), "vllm")
    assert "--max-model-len" not in flags(unknown)
    assert any(f"--max-model-len {fits}" in line for line in unknown.assumptions)


def test_precision_of_weights_and_cache() -> None:
    plain = flags(export(*serving(), "vllm"))
    assert plain["--dtype"] == ("bfloat16",)
    assert not {"--quantization", "--kv-cache-dtype"} & set(plain)
    both = flags(export(*serving(precision=DType.FP8, kv_dtype=DType.FP8), "vllm"))
    assert (both["--quantization"], both["--kv-cache-dtype"]) == (("fp8",), ("fp8",))
    weights = flags(export(*serving(precision=DType.FP8), "vllm"))
    assert weights["--quantization"] == ("fp8",)
    assert "--kv-cache-dtype" not in weights


def test_memory_share_is_what_was_planned_rounded_down() -> None:
    plan, request = serving()
    # 30 weights + 15 activations + 4 transient + 1 overhead + 20 cache of 80 GB.
    assert memory_utilisation(replicas_of(plan).workers, request) == 0.87
    # The share is of the whole device, whatever the plan held back.
    reserved = replace(request, cluster=replace(request.cluster, memory_reserve=0.1))
    assert memory_utilisation(replicas_of(plan).workers, reserved) == 0.87


def test_a_draft_is_named_as_vllm_wants_it() -> None:
    mtp = Speculation(2, 0.8, Draft(DraftMethod.MTP, relative_cost=0.02))
    told = flags(export(*serving(speculation=mtp), "vllm"))["--speculative-config"]
    assert json.loads(told[0]) == {"method": "mtp", "num_speculative_tokens": 2}
    eagle = Speculation(4, 0.7, Draft(DraftMethod.EAGLE3, relative_cost=0.05, model="org/draft"))
    told = flags(export(*serving(speculation=eagle), "vllm"))["--speculative-config"]
    assert json.loads(told[0]) == {"method": "eagle3", "model": "org/draft", "num_speculative_tokens": 4}
    assert "--speculative-config" not in flags(export(*serving(), "vllm"))


def test_a_draft_without_its_checkpoint_is_refused() -> None:
    unnamed = Speculation(4, 0.7, Draft(DraftMethod.DRAFT_MODEL, relative_cost=0.05))
    with pytest.raises(ExportError, match="needs the checkpoint of a draft"):
        export(*serving(speculation=unnamed), "vllm")


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ExportError, match="heads 64 does not divide by tp 3"):
        export(*serving(tp=3), "vllm")


def test_vllm_accepts_the_flags_and_means_the_same(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B), encoding="utf-8")
    plans = [
        serving(replicas=2, tp=4),
        serving(replicas=2, tp=4, pp=2, layers=[39, 41]),
        serving(tp=8, precision=DType.FP8, kv_dtype=DType.FP8),
        serving(tp=8, pp=2),
    ]
    cases = []
    for plan in plans:
        words = arguments(export(*plan, "vllm"))
        words = [word.replace("$NODE_RANK", "0").replace("$MASTER_ADDR", "127.0.0.1") for word in words]
        # "serve MODEL" and --port are the server's, not the engine's.
        engine = words[words.index("serve") + 2 : words.index("--port")]
        cases.append({"args": engine, "model": str(tmp_path)})
    cases.append({"args": ["--tensor-parallel-size", "3"], "model": str(tmp_path)})
    answers = ask("vllm", "vllm_args.py", cases)
    assert [answer.get("error") for answer in answers[:-1]] == [None] * len(plans)
    assert [(a["tp"], a["pp"], a["dp"]) for a in answers[:-1]] == [(4, 1, 2), (4, 2, 1), (8, 1, 1), (8, 2, 1)]
    for answer in answers[:-1]:
        assert (answer["max_num_seqs"], answer["max_num_batched_tokens"]) == (64, 8192)
        assert answer["max_model_len"] >= 4500
    assert (answers[2]["quantization"], answers[2]["cache_dtype"]) == ("fp8", "fp8")
    assert "divisible" in answers[-1]["error"]


def pooled(*, prefill_tp: int = 2, decode_tp: int = 4, decode_pp: int = 1) -> tuple[Plan, PlanRequest]:
    """Two prefill workers beside two decode workers."""
    plan, request = serving(replicas=2, tp=decode_tp, pp=decode_pp, nodes=3)
    other, _ = serving(replicas=2, tp=prefill_tp, nodes=3)
    decode, pool, first = replicas_of(plan), replicas_of(other), plan.devices
    stages = tuple(
        replace(stage, devices=tuple(replace(devices, first=devices.first + first) for devices in stage.devices))
        for stage in pool.stages
    )
    prefill = PrefillWorkers(2, pool.axes, stages, 256, 8192, 0.5, 1.0)
    devices = plan.devices + other.devices
    certificate = replace(plan.certificate, objective=float(devices))
    plan = replace(plan, devices=devices, certificate=certificate, layout=Pools(prefill, decode))
    return plan, replace(request, search=replace(request.search, modes=(ServingMode.DISAGGREGATED,)))


def test_pools_are_a_server_of_each_kind() -> None:
    found = export(*pooled(), "vllm")
    assert set(found.files) == {"prefill.sh", "decode.sh"}
    for name, tp, tokens in (("prefill.sh", 2, 8192), ("decode.sh", 4, 8192)):
        words = shlex.split(found.files[name].replace("\\\n", " "), comments=True)
        assert words[words.index("--tensor-parallel-size") + 1] == str(tp)
        assert words[words.index("--max-num-batched-tokens") + 1] == str(tokens)
        transfer = json.loads(words[words.index("--kv-transfer-config") + 1])
        assert transfer == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    assert any("one prefill server of 2" in said for said in found.assumptions)


def two_kinds() -> tuple[Plan, PlanRequest]:
    """A replica of tp 8 on one node group, two of tp 2 on the next, which take a fifth of the arrivals."""
    whole, request = serving(tp=8)
    node = request.cluster.groups[0].node
    groups = NodeGroup("new", node, 1), NodeGroup("old", replace(node, name="old-node"), 1)
    kinds = []
    for share, first, (plan, _) in ((0.8, 0, (whole, request)), (0.2, 8, serving(replicas=2, tp=2))):
        assert plan.predicted is not None
        replicas = replicas_of(plan)
        count = replicas.load.replicas * replicas.axes.tp
        stages = tuple(replace(stage, devices=(DeviceRange(first, count),)) for stage in replicas.stages)
        predicted = replace(plan.predicted, tokens_per_s=share * 2000.0)
        kinds.append(WorkerKind(share, share * 4.0, count, predicted, replace(replicas, stages=stages)))
    certificate = replace(whole.certificate, objective=12.0)
    plan = replace(whole, devices=12, certificate=certificate, layout=Kinds(tuple(kinds)))
    search = replace(request.search, worker_kinds=2)
    return plan, replace(request, cluster=Cluster(groups), search=search)


def test_kinds_are_server_groups_with_weights() -> None:
    found = export(*two_kinds(), "vllm")
    assert set(found.files) == {"kind-1.sh", "kind-2.sh", "router-weights.json"}
    for name, tp, port in (("kind-1.sh", 8, 8000), ("kind-2.sh", 2, 8001)):
        words = shlex.split(found.files[name].replace("\\\n", " "), comments=True)
        assert words[words.index("--tensor-parallel-size") + 1] == str(tp)
        assert words[words.index("--port") + 1] == str(port)
        assert ("--data-parallel-size" in words) == (tp == 2)
    # Both replicas of tp 2 are ranks of one server, which takes the whole share.
    assert json.loads(found.files["router-weights.json"]) == {
        "kind-1.sh": {"servers": 1, "weight_each": 0.8},
        "kind-2.sh": {"servers": 1, "weight_each": 0.2},
    }
    assert any("ranks 8 to 11 (old-node" in said for said in found.assumptions)
    assert any("0.2 to each of 1 kind-2.sh" in said for said in found.assumptions)


def test_other_launchers_refuse_several_kinds() -> None:
    with pytest.raises(ExportError, match="one kind of workers"):
        export(*two_kinds(), "sglang")


@pytest.mark.parametrize(
    ("change", "message"),
    [({"decode_pp": 2}, "tensor-parallel servers only"), ({"prefill_tp": 4, "decode_tp": 2}, "multiple of their ranks")],
)
def test_pools_that_vllm_can_not_connect_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        export(*pooled(**change), "vllm")
