"""The deployment of a row."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from meshwright.app.evidence.serving.degrees import EqualWorkers
from meshwright.app.evidence.serving.deployment import Drafts, deployment, stored_format
from meshwright.app.evidence.serving.recipes import EngineName
from meshwright.app.evidence.serving.replay import default_constants, replay, simulated_engine
from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.models.catalog import model as catalogue_model
from meshwright.app.models.catalog import model_document, model_names
from meshwright.costmodels.model.dims import EXPERT_FFN
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.serving.engine_profile import ENGINE_VLLM
from meshwright.costmodels.units import DType
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import EngineBuilder
from meshwright.solver.serving.engines.layouts import layouts
from tests.support.requests_given import resolved, serving
from tests.unit.app.validation.serving.tables import point


def test_a_row_that_says_all(tmp_path: Path) -> None:
    found = deployment(point(tmp_path, engine="trtllm(pytorch)", tp="2", n_gpus="8").run)
    assert found.engine is EngineName.TENSORRT_LLM
    assert found.decode == EqualWorkers(count=4, tp=2, pp=1, ep=1, attention_dp=1)
    assert (found.model, found.node, found.clients, found.prefill) == ("llama-3.1-8b", "dgx-h100", 8, None)


@pytest.mark.parametrize(
    ("engine", "note", "kv_dtype", "shortest"),
    [
        ("trtllm", "", DType.FP8, 1.0),
        ("vllm", "", DType.BF16, 1.0),
        ("vllm", "source_file=2026-03-25.csv", DType.FP8, 0.8),
        ("sglang", "db-dump/2026-04-27", DType.BF16, 0.8),
    ],
)
def test_what_a_source_leaves_unsaid(tmp_path: Path, engine: str, note: str, kv_dtype: DType, shortest: float) -> None:
    found = deployment(point(tmp_path, engine=engine, note=note).run)
    assert (found.kv_dtype, found.shortest) == (kv_dtype, shortest)


def test_workers_of_each_phase(tmp_path: Path) -> None:
    degrees = {"tp": "P1x8/D9x4", "dp_attn": "P1/D2", "ep": "P8/D0"}
    found = deployment(point(tmp_path, mode="disagg", **degrees).run)
    assert found.prefill == EqualWorkers(count=1, tp=8, pp=1, ep=8, attention_dp=1)
    assert found.decode == EqualWorkers(count=9, tp=4, pp=1, ep=1, attention_dp=2)


def test_degrees_that_one_server_can_not_have_are_products(tmp_path: Path) -> None:
    found = deployment(point(tmp_path, tp="64", ep="8", n_gpus="64", note="db-dump/2026-04-27").run)
    assert found.decode == EqualWorkers(count=1, tp=8, pp=1, ep=8, attention_dp=1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "nobody's"}, "model not in the catalogue: nobody's"),
        ({"gpu": "abacus"}, "GPU not in the catalogue: abacus"),
        ({"engine": "none"}, "engine without a profile: none"),
        ({"precision": "fp7"}, "unknown precision: fp7"),
        ({"isl": ""}, "the row does not state its lengths"),
        ({"concurrency": ""}, "the row does not state its concurrency"),
        ({"concurrency": "nan"}, "the row does not state its concurrency"),
        ({"mode": "disagg", "tp": "8"}, "the row does not state the workers of each phase"),
    ],
)
def test_rows_that_say_too_little(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    with pytest.raises(NotPredictedError, match=reason):
        deployment(point(tmp_path, **changes).run)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("nvidia/DeepSeek-R1-NVFP4", "deepseek-v3"),
        ("nvidia/DeepSeek-V3.1-NVFP4", "deepseek-v3"),
        ("DeepSeek-R1-0528", "deepseek-v3"),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
        ("nvidia/Qwen3-32B-NVFP4", "qwen3-32b"),
        ("Llama 3.3 70B", "llama-3.1-70b"),
        ("Llama 3.1 405B", "llama-3.1-405b"),
        ("Llama 4 Scout", "llama-4-scout"),
        ("GPT-OSS 120B", "gpt-oss-120b"),
        ("zhipuai/GLM-5", "glm-5"),
        ("moonshotai/Kimi-K2.5", "kimi-k2"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax-m2.5"),
        ("Qwen/Qwen3.5-397B-A17B", "qwen3.5-397b-a17b"),
        ("qwen3-32b", "qwen3-32b"),
    ],
)
def test_a_model_by_any_of_its_names(tmp_path: Path, said: str, name: str) -> None:
    assert deployment(point(tmp_path, model=said).run).model == name


@pytest.mark.parametrize(
    ("said", "node"),
    [
        ("gb200", "gb200-nvl72"),
        ("gb300", "gb300-nvl72"),
        ("b300_sxm", "dgx-b300"),
        ("H200", "dgx-h200"),
        ("h200_sxm (from a plot)", "dgx-h200"),
        ("B200", "dgx-b200"),
    ],
)
def test_a_gpu_by_any_of_its_names(tmp_path: Path, said: str, node: str) -> None:
    assert deployment(point(tmp_path, gpu=said).run).node == node


@pytest.mark.parametrize("file", ["acme--Tiny.json", "acme/Tiny/config.json", "Tiny.json", "Tiny/config.json"])
def test_a_model_in_a_folder_of_configs(tmp_path: Path, file: str) -> None:
    config = tmp_path / "models" / file
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps(model_document("llama-3.1-8b")), encoding="utf-8")
    found = deployment(point(tmp_path, model="acme/Tiny").run, tmp_path / "models")
    assert (found.model, found.config) == ("acme/Tiny", str(config))
    named = deployment(point(tmp_path).run)
    assert replay(found, default_constants(found.engine)) == replay(named, default_constants(named.engine))


def test_a_config_outside_of_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "secret.json").write_text("{}", encoding="utf-8")
    with pytest.raises(NotPredictedError, match="model not in the catalogue"):
        deployment(point(tmp_path, model="../secret.json").run, tmp_path / "models")


def test_workers_of_each_phase_in_columns(tmp_path: Path) -> None:
    prefill = {"prefill_workers": "2", "prefill_tp": "4", "prefill_ep": "4", "prefill_dp_attn": "1"}
    decode = {"decode_workers": "1", "decode_tp": "8", "decode_ep": "1", "decode_dp_attn": "0"}
    found = deployment(point(tmp_path, mode="disagg", tp="Px4/Dx8", **prefill, **decode).run)
    assert found.prefill == EqualWorkers(count=2, tp=1, pp=1, ep=4, attention_dp=4)
    assert found.decode == EqualWorkers(count=1, tp=8, pp=1, ep=1, attention_dp=1)


def test_a_row_without_degrees_is_one_worker(tmp_path: Path) -> None:
    assert deployment(point(tmp_path, tp="", n_gpus="8").run).decode == EqualWorkers(count=1, tp=8, pp=1, ep=1, attention_dp=1)


def test_three_degrees_of_the_same_devices(tmp_path: Path) -> None:
    row = {"tp": "4", "dp_attn": "4", "ep": "16", "n_gpus": "16", "note": "db-dump/2026-04-27"}
    assert deployment(point(tmp_path, **row).run).decode == EqualWorkers(count=1, tp=4, pp=1, ep=4, attention_dp=1)


def test_an_empty_precision_is_the_checkpoints(tmp_path: Path) -> None:
    assert deployment(point(tmp_path, precision="").run).precision is DType.BF16
    assert deployment(point(tmp_path, precision="", model="MiniMaxAI/MiniMax-M2.5").run).precision is DType.FP8


@pytest.mark.parametrize(
    ("model", "said", "drafts"),
    [
        ("deepseek-ai/DeepSeek-R1", "", Drafts.UNKNOWN),
        ("deepseek-ai/DeepSeek-R1", "ambiguous", Drafts.UNKNOWN),
        ("deepseek-ai/DeepSeek-R1", "none", Drafts.NONE),
        ("deepseek-ai/DeepSeek-R1", "mtp", Drafts.STATED),
        ("meta-llama/Llama-3.1-70B", "", Drafts.NONE),
    ],
)
def test_drafts_as_rows_state_them(tmp_path: Path, model: str, said: str, drafts: Drafts) -> None:
    assert deployment(point(tmp_path, model=model, speculation=said).run).drafts is drafts


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("ep", ["", "1", "8"])
def test_blocks_of_a_checkpoint_are_never_cut(tmp_path: Path, engine: str, ep: str) -> None:
    """An engine that does not start with a part of a block of fp8 ran whole experts, whatever a table leaves out."""
    row = {"model": "MiniMaxAI/MiniMax-M2.5", "gpu": "h200_sxm", "n_gpus": "8", "tp": "8", "engine": engine, "ep": ep}
    for precision in ("", "fp8", "fp8_block"):
        found = deployment(point(tmp_path, precision=precision, **row).run)
        assert (found.decode, found.stored) == (EqualWorkers(1, 8, 1, 8, 1), stored_format(row["model"], found.model))


def test_a_measured_deployment_is_one_that_plans_have(tmp_path: Path) -> None:
    row = {"model": "MiniMaxAI/MiniMax-M2.5", "gpu": "h200_sxm", "n_gpus": "8", "tp": "8", "ep": "1"}
    measured = simulated_engine(deployment(point(tmp_path, concurrency="128", isl="1024", osl="1024", **row).run))
    work = {"kind": "serving", "arrivals": {"process": "closed", "concurrency": 128}, "precision": "fp8"}
    lengths = {"prompt_tokens": {"fixed": 1024}, "output_tokens": {"fixed": 1024}}
    given = serving(model={"huggingface": row["model"]}, cluster="8xH200", workload=work | lengths)
    request = resolved(given | {"slo": {}, "search": {"tp": [8], "attention_dp": [1], "launcher": "vllm"}})
    assert isinstance(request, ServingRequest)
    planned = EngineBuilder(request, sequence_tokens=16384, step_tokens=8192, sequences=2048, profile=ENGINE_VLLM)
    found = [planned.engine(layout) for layout in layouts(request)]
    assert [(each.layout.grid, each.precision) for each in found] == [(measured.layout.grid, measured.precision)]
    ours, theirs = found[0].times, measured.times
    np.testing.assert_allclose(ours.tokens_s[0, :512], theirs.tokens_s[0, :512])


@pytest.mark.parametrize("model", [name for name in model_names() if model_document(name).get("quantization_config")])
def test_every_checkpoint_in_blocks_is_whole_at_every_degree(tmp_path: Path, model: str) -> None:
    width = catalogue_model(model).dims.get(EXPERT_FFN, 0)
    for tp in (1, 2, 4, 8, 16, 32):
        found = deployment(point(tmp_path, model=model, precision="", gpu="h200_sxm", n_gpus=str(tp), tp=str(tp)).run)
        if found.stored is not None and found.stored.weights is WeightFormat.FP8_BLOCK:
            assert width // (tp // found.decode.ep) % 128 == 0


def test_tensorrt_llms_own_tables_ran_one_scale_a_matrix(tmp_path: Path) -> None:
    row = {"model": "Qwen3-235B-A22B", "gpu": "H200", "n_gpus": "8", "tp": "8", "ep": "", "engine": "trtllm"}
    found = deployment(point(tmp_path, **row).run)
    assert found.decode.ep == 1
    assert found.stored is not None
    assert found.stored.weights is WeightFormat.FP8
    assert deployment(point(tmp_path, **row | {"engine": "vllm"}).run).decode.ep == 8
