"""Flags and keys of TensorRT-LLM, its file read against the keys of its records and its command by our table of flags."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from meshwright.app.launching.exporters import Export, export
from meshwright.app.launching.launchers.table import launch_flags
from meshwright.app.launching.parts.serving import degrees
from meshwright.costmodels.errors import ExportError, WorkloadError
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.speculation import Draft, DraftMethod, Speculation
from meshwright.costmodels.units import DType
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.planning import plan_serving
from tests.unit.app.exporters import plans
from tests.unit.app.exporters.plans import flags
from tests.unit.app.exporters.real_tools import ask

ENGINE = ServingEngine.TENSORRT_LLM


def exported(name: str = "llama-3.1-70b", **layout: Any) -> Export:
    return export(*plans.serving(name, engine=ENGINE, **layout), "tensorrt-llm")


def draft(method: DraftMethod) -> Speculation:
    model = "draft" if method in (DraftMethod.EAGLE3, DraftMethod.DRAFT_MODEL, DraftMethod.EAGLE) else None
    return Speculation(3, 0.8, Draft(method, relative_cost=0.02, model=model))


def exports() -> list[Export]:
    groups = exported("deepseek-v3", tp=1, attention_dp=8, ep=8, layers=[61], kv_dtype=DType.FP8)
    drafts = (DraftMethod.MTP, DraftMethod.NGRAM, DraftMethod.EAGLE3, DraftMethod.DRAFT_MODEL)
    return [
        exported(),
        exported(tp=4, pp=2, layers=[39, 41], replicas=2),
        exported(tp=8, pp=2, layers=[40, 40]),
        groups,
        exported("qwen3-30b-a3b", tp=4, ep=2, layers=[48]),
        *(exported(speculation=draft(method)) for method in drafts),
    ]


def test_no_key_is_unknown_to_its_records() -> None:
    assert ask("yaml", "tensorrt_llm_keys.py", [found.files["trtllm.yaml"] for found in exports()]) == [[]] * len(exports())
    assert ask("yaml", "tensorrt_llm_keys.py", ["max_nonsense: 1\nkv_cache_config: {fraction: 0.5}"]) == [
        ["max_nonsense", "kv_cache_config.fraction"]
    ]


def test_the_command_is_read_back_as_it_was_planned() -> None:
    for found, (tp, pp, ep) in zip(exports()[:5], [(8, 1, 1), (4, 2, 1), (8, 2, 1), (8, 1, 8), (4, 1, 2)], strict=True):
        command = found.command.replace("\\\n", " ").partition("trtllm-serve")[2]
        told = launch_flags(ENGINE, f"trtllm-serve {command}")
        assert degrees(told, ENGINE, experts=ep > 1).devices == tp * pp
        assert (told.tp, told.pp, told.ep or 1) == (tp, pp, ep)
        assert (told.sequences, told.step_tokens) == (64, 8192)


def test_attention_groups_and_experts() -> None:
    settings = yaml.safe_load(exports()[3].files["trtllm.yaml"])
    assert settings["enable_attention_dp"] is True
    assert settings["moe_tensor_parallel_size"] == 1
    assert settings["kv_cache_config"]["dtype"] == "fp8"
    assert yaml.safe_load(exports()[4].files["trtllm.yaml"])["moe_tensor_parallel_size"] == 2


def test_a_replica_on_several_nodes_starts_by_tasks() -> None:
    found = exports()[2]
    assert found.command.startswith("trtllm-llmapi-launch")
    assert any("16 of them: srun --mpi=pmix --ntasks-per-node 8" in line for line in found.assumptions)


def test_uneven_stages_are_said() -> None:
    found = exports()[1]
    assert yaml.safe_load(found.files["trtllm.yaml"])["pp_partition"] == [39, 41]
    assert any("start it 2 times" in line for line in found.assumptions)


def test_the_cache_gets_its_planned_share() -> None:
    """20 GB of 80 that weights, activations and overhead (60 and 30 beside the cache) leave: plans of the tests hold these."""
    plan, request = plans.serving(engine=ENGINE)
    (stage,) = plan.layout.stages  # type: ignore[union-attr]
    free = 80e9 - (stage.memory.total_bytes - 20e9)
    share = yaml.safe_load(export(plan, request, "tensorrt-llm").files["trtllm.yaml"])["kv_cache_config"]
    assert share["free_gpu_memory_fraction"] == pytest.approx(20e9 / free, abs=0.01)


def test_lengths_are_left_to_the_models_own_limit() -> None:
    assert "--max_seq_len" not in flags(exported())


def test_heads_of_the_first_eagle_are_neither_planned_nor_started() -> None:
    speculation = draft(DraftMethod.EAGLE)
    with pytest.raises(ExportError, match="no drafts of the method eagle"):
        exported(speculation=speculation)
    _, request = plans.serving("llama-3.1-8b", engine=ENGINE, layers=[32], speculation=speculation)
    assert isinstance(request, ServingRequest)
    with pytest.raises(WorkloadError, match="ngram, mtp, eagle3, draft_model"):
        plan_serving(request, stop=never_stop, progress=ignore_progress)


def test_a_plan_of_another_engine_is_refused() -> None:
    with pytest.raises(ExportError, match="another engine"):
        export(*plans.serving(), "tensorrt-llm")
