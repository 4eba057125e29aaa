"""Flags of SGLang, and what its own parser makes of them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from meshwright.app.launching.exporters import Export, export
from meshwright.app.launching.launchers.sglang import static_share
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.speculation import Draft, DraftMethod, Speculation
from meshwright.costmodels.units import DType
from meshwright.solver.answer.layouts import Pools, PrefillWorkers
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import ServingMode
from meshwright.solver.problem.request import PlanRequest
from tests.support.serving_layouts import replicas_of
from tests.unit.app.exporters import plans
from tests.unit.app.exporters.plans import arguments, flags
from tests.unit.app.exporters.real_tools import ask

MIXTURE = "deepseek-v3"


def served(name: str = "llama-3.1-70b", **layout: Any) -> tuple[Plan, PlanRequest]:
    return plans.serving(name, engine=ServingEngine.SGLANG, **layout)


def draft(method: DraftMethod, **named: str) -> Speculation:
    return Speculation(3, 0.8, Draft(method, relative_cost=0.02, **named))


def mixture(**layout: Any) -> tuple[Plan, PlanRequest]:
    """Four attention groups of two ranks, experts whole on eight."""
    return served(MIXTURE, **{"tp": 2, "attention_dp": 4, "ep": 8, "layers": [61]} | layout)


def pooled(
    *, prefill_tp: int = 2, cp: int = 1, decode_tp: int = 4, decode_pp: int = 1, speculation: Speculation | None = None
) -> tuple[Plan, PlanRequest]:
    """Two prefill workers of tp x cp ranks beside two decode workers."""
    plan, request = served(replicas=2, tp=decode_tp, pp=decode_pp, nodes=4, speculation=speculation)
    other, _ = served(replicas=2, tp=prefill_tp * cp, nodes=4)
    decode, pool = replicas_of(plan), replicas_of(other)
    axes = replace(pool.axes, tp=prefill_tp, cp=cp)
    stages = tuple(
        replace(stage, axes=axes, devices=tuple(replace(d, first=d.first + plan.devices) for d in stage.devices))
        for stage in pool.stages
    )
    prefill = PrefillWorkers(2, axes, stages, 256, 8192, 0.5, 1.0)
    devices = plan.devices + other.devices
    certificate = replace(plan.certificate, objective=float(devices))
    plan = replace(plan, devices=devices, certificate=certificate, layout=Pools(prefill, decode))
    return plan, replace(request, search=replace(request.search, modes=(ServingMode.DISAGGREGATED,)))


def words_of(found: Export, name: str) -> list[str]:
    return shlex.split(found.files[name].replace("\\\n", " "), comments=True)


def test_replicas_of_one_node_share_a_server_unless_they_have_attention_groups() -> None:
    assert flags(export(*served(replicas=2, tp=4), "sglang"))["--dp-size"] == ("2",)
    spread = export(*served(replicas=4, tp=4), "sglang")
    assert "--dp-size" not in flags(spread)
    assert any("start it 4 times" in line for line in spread.assumptions)
    turns = " ".join(export(*served(replicas=4, tp=4, router=Router.ROUND_ROBIN), "sglang").assumptions)
    assert "deals requests out round robin (sglang_router.launch_router --worker-urls --policy round_robin)" in turns
    grouped = export(*served(MIXTURE, replicas=2, tp=1, attention_dp=4, ep=4, layers=[61]), "sglang")
    assert "--dp-size" not in flags(grouped)


def test_attention_groups_share_the_limits_of_their_server() -> None:
    found = export(*mixture(), "sglang")
    told = flags(found)
    assert (told["--tp-size"], told["--attn-dp-size"], told["--ep-size"]) == (("8",), ("4",), ("8",))
    assert (told["--max-running-requests"], told["--chunked-prefill-size"]) == (("256",), ("32768",))
    assert told["--max-prefill-tokens"] == ("8192",)
    assert any("ffn" in line and "all 8 ranks" in line for line in found.inexpressible)
    assert not export(*served(tp=8), "sglang").inexpressible


def test_a_replica_larger_than_a_node_runs_on_all_its_nodes() -> None:
    result = export(*served(tp=8, pp=2), "sglang")
    assert (flags(result)["--nnodes"], flags(result)["--node-rank"]) == (("2",), ("$NODE_RANK",))
    assert any("on every node" in line for line in result.assumptions)


def test_uneven_stages_are_named_by_their_variable() -> None:
    assert "SGLANG_PP_LAYER_PARTITION=39,41" in arguments(export(*served(tp=4, pp=2, layers=[39, 41]), "sglang"))
    with pytest.raises(ExportError, match="SGLang needs a layer on every pipeline stage"):
        export(*served(tp=4, pp=2, layers=[0, 80]), "sglang")


def test_the_static_share_is_of_what_is_free_before_loading() -> None:
    # 30 weights + 20 cache of 80 GB less 1 of context and communicators.
    plan, request = served()
    workers = replicas_of(plan).workers
    assert static_share(workers, request) == 0.63
    fuller = replace(workers.stages[0], memory=replace(workers.stages[0].memory, kv_cache_bytes=40e9))
    assert static_share(replace(workers, stages=(*workers.stages, fuller)), request) == 0.88


def test_the_context_is_left_to_the_model() -> None:
    plan, request = served()
    assert "--context-length" not in flags(export(plan, request, "sglang"))
    stated = replace(request.model, hyperparameters=None)
    unknown = export(plan, replace(request, model=stated), "sglang")
    assert any("the KV cache holds a request of" in line for line in unknown.assumptions)


def test_drafts_are_named_as_sglang_wants_them() -> None:
    told = flags(export(*mixture(speculation=draft(DraftMethod.MTP)), "sglang"))
    assert told["--speculative-algorithm"] == ("NEXTN",)
    assert (told["--speculative-num-steps"], told["--speculative-num-draft-tokens"]) == (("3",), ("4",))
    assert "--enable-mixed-chunk" in told
    found = export(*served(speculation=draft(DraftMethod.NGRAM)), "sglang")
    assert not {"--enable-mixed-chunk", "--speculative-num-steps"} & set(flags(found))
    assert any("prompts first" in line for line in found.inexpressible)
    with pytest.raises(ExportError, match="SGLang needs the checkpoint"):
        export(*served(speculation=draft(DraftMethod.DRAFT_MODEL)), "sglang")


def test_rules_of_heads_and_engines_are_kept() -> None:
    with pytest.raises(ExportError, match="heads 64 does not divide by tp 3"):
        export(*served(tp=3), "sglang")
    with pytest.raises(ExportError, match="experts"):
        export(*mixture(tp=1, attention_dp=3, ep=3), "sglang")
    with pytest.raises(ExportError, match="another engine"):
        export(*plans.serving(), "sglang")
    with pytest.raises(ExportError, match="another engine"):
        export(*served(), "vllm")


def test_pools_are_a_server_of_each_kind_behind_a_router() -> None:
    found = export(*pooled(cp=2), "sglang")
    assert set(found.files) == {"prefill.sh", "decode.sh", "router.sh"}
    prefill, decode = words_of(found, "prefill.sh"), words_of(found, "decode.sh")
    for words, mode, tp in ((prefill, "prefill", "4"), (decode, "decode", "4")):
        assert words[words.index("--disaggregation-mode") + 1] == mode
        assert words[words.index("--tp-size") + 1] == tp
        assert "--enable-mixed-chunk" not in words
    assert prefill[prefill.index("--attn-cp-size") + 1] == "2"
    assert "--attn-cp-size" not in decode
    bootstrap = prefill[prefill.index("--disaggregation-bootstrap-port") + 1]
    router = words_of(found, "router.sh")
    assert router[router.index("--prefill") + 2] == bootstrap
    assert any("one prefill server of 2, on 4 devices" in said for said in found.assumptions)


@pytest.mark.parametrize(("change", "message"), [({"decode_pp": 2}, "as many, or one"), ({"prefill_tp": 3}, "does not divide")])
def test_pools_that_sglang_can_not_connect_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        export(*pooled(**change), "sglang")


@pytest.mark.slow
def test_sglang_accepts_the_flags_and_means_the_same() -> None:
    eagle = draft(DraftMethod.EAGLE3, model="org/draft")
    whole = [
        served(replicas=2, tp=4),
        served(tp=8, pp=2, precision=DType.FP8, kv_dtype=DType.FP8),
        mixture(speculation=draft(DraftMethod.MTP)),
        served(tp=8, speculation=eagle),
    ]
    commands = [arguments(export(*plan, "sglang")) for plan in whole]
    pools = export(*pooled(cp=2), "sglang")
    commands += [words_of(pools, name) for name in ("prefill.sh", "decode.sh")]
    spoken = [[word.replace("$NODE_RANK", "1").replace("$MASTER_ADDR", "10.0.0.1:20000") for word in c] for c in commands]
    cases = [words[words.index("sglang.launch_server") + 1 :] for words in spoken]
    answers = ask("sglang", "sglang_args.py", [*cases, ["--model-path", "x", "--kv-cache-dtype", "fp7"]])
    assert [answer.get("error") for answer in answers[:-1]] == [None] * len(cases)
    assert "fp7" in answers[-1]["error"]
    grid = [
        (a["tp_size"], a["pp_size"], a["dp_size"], a["attn_dp_size"], a["attn_cp_size"], a["ep_size"]) for a in answers[:-1]
    ]
    assert grid == [
        (4, 1, 2, 1, 1, 1),
        (8, 2, 1, 1, 1, 1),
        (8, 1, 1, 4, 1, 8),
        (8, 1, 1, 1, 1, 1),
        (4, 1, 1, 1, 2, 1),
        (4, 1, 1, 1, 1, 1),
    ]
    assert [a["enable_mixed_chunk"] for a in answers[:-1]] == [True, True, True, True, False, False]
    limits = [(a["max_running_requests"], a["chunked_prefill_size"], a["max_prefill_tokens"]) for a in answers[:3]]
    assert limits == [(64, 8192, 8192), (64, 8192, 8192), (256, 32768, 8192)]
    assert (answers[1]["quantization"], answers[1]["kv_cache_dtype"]) == ("fp8", "fp8_e4m3")
    assert (answers[1]["nnodes"], answers[1]["node_rank"], answers[1]["dist_init_addr"]) == (2, 1, "10.0.0.1:20000")
    assert [a["speculative_algorithm"] for a in answers[2:4]] == ["NEXTN", "EAGLE3"]
    assert [a["speculative_num_draft_tokens"] for a in answers[2:4]] == [4, 4]
    assert {a["context_length"] for a in answers[:-1]} == {None}
    assert (answers[4]["disaggregation_mode"], answers[5]["disaggregation_mode"]) == ("prefill", "decode")
    assert (answers[4]["enable_prefill_cp"], answers[4]["cp_strategy"]) == (True, "zigzag")
