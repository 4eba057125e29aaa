"""The words of a row mean what the mapping of its table says of them, and nothing without one."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from meshwright.app.evidence.training.cells import COLUMNS, RESULT_COLUMNS, STATED_COLUMNS
from meshwright.app.evidence.training.prediction import costed_run
from meshwright.app.evidence.training.rows import read_measured_runs
from meshwright.app.evidence.training.sources import NO_SOURCES, Source, Sources
from meshwright.app.evidence.training.stated import NOTHING_STATED, RowRule
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.model.implementation import (
    AdapterTarget,
    AttentionFormat,
    AttentionKernels,
    FrozenWeights,
    GatedInputs,
    HeadGradients,
    HostPath,
    LossKernels,
    SelectiveRecompute,
    TensorOverlap,
    TrainedWeights,
    VectorKernels,
)
from meshwright.costmodels.units import DType
from meshwright.solver.problem.implementation import StatedImplementation
from tests.unit.app.validation.tables import run, write_table

H100_2024 = "pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md Table 1"
H200_2025 = "pytorch/torchtitan benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md"
ASYNC_TP_2025 = "pytorch/torchtitan benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md"
QKV = (AdapterTarget.Q, AdapterTarget.K, AdapterTarget.V)
LTS = "case gpt3_mcore_te_tp2_pp2 (lts_dgxa100_dracooci)"


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"source_id": "torchtitan", "source": H100_2024, "notes": "bf16 compile; GiB"}, "stated_loss", None),
        ({"source_id": "torchtitan", "source": H200_2025, "notes": "compile+fp8"}, "stated_loss", LossKernels.COMPILED),
        ({"source_id": "torchtitan", "source": ASYNC_TP_2025, "notes": "compile"}, "stated_loss", LossKernels.COMPILED),
        ({"source_id": "torchtitan", "source": H200_2025, "notes": "bf16 eager"}, "stated_loss", None),
        ({"source_id": "torchtitan", "notes": "bf16 compile"}, "kernels", VectorKernels.COMPILED),
        ({"source_id": "torchtitan", "notes": "async TP; compile"}, "tensor_overlap", TensorOverlap.SYMMETRIC_MEMORY),
        ({"source_id": "torchtitan", "notes": "vanilla TP; compile"}, "tensor_overlap", None),
        ({"source_id": "megatron_ci_dense", "notes": "case a_tp_overlap (b)"}, "tensor_overlap", TensorOverlap.USERBUFFERS),
        (
            {"source_id": "megatron_ci_dense", "notes": "case defer_embedding_wgrad_compute"},
            "head_gradients",
            HeadGradients.DEFERRED,
        ),
        ({"source_id": "megatron_ci_dense", "notes": LTS}, "attention_kernels", AttentionKernels.UNFUSED),
        (
            {"source_id": "megatron_ci_dense", "notes": LTS.replace(" (", "_nondeterministic (")},
            "attention_kernels",
            AttentionKernels.FUSED,
        ),
        (
            {"source_id": "megatron_ci_dense", "notes": LTS.replace("lts", "dev")},
            "attention_kernels",
            AttentionKernels.FUSED,
        ),
        (
            {"source_id": "aleph_layouts", "notes": "kernel=torch", "flash_attention": "0"},
            "attention_kernels",
            AttentionKernels.STEP_BY_STEP,
        ),
        (
            {"source_id": "aleph_layouts", "notes": "kernel=torch", "flash_attention": "2"},
            "attention_kernels",
            AttentionKernels.FUSED,
        ),
        ({"source_id": "aleph_layouts", "notes": "RMS kernel"}, "kernels", VectorKernels.FUSED_NORMS),
        ({"source_id": "mbridge_sftlora", "notes": "LoRA performance"}, "trained", TrainedWeights.ADAPTERS),
        ({"source_id": "mbridge_sftlora", "notes": "LoRA performance"}, "adapter_targets", QKV),
        ({"source_id": "mbridge_sftlora", "notes": "SFT performance"}, "adapter_targets", None),
        ({"source_id": "mlperf_lora", "notes": "SP=1 TP_COMM_OVERLAP=True"}, "tensor_overlap", TensorOverlap.USERBUFFERS),
        ({"source_id": "mlperf_training", "notes": "LAYER_CUDA_GRAPH=1 FP8_DPA=0"}, "host", HostPath.CUDA_GRAPHS),
        ({"source_id": "mlperf_lora", "notes": "SP=0 FP8_DPA=1; NeMo"}, "attention_format", AttentionFormat.FP8),
        ({"source_id": "mlperf_lora", "notes": "SP=0 FP8_ACT=1 FP8_DPA=0"}, "gated_inputs", GatedInputs.FP8),
        ({"source_id": "mlperf_lora", "gpu": "B200", "precision": "fp8"}, "frozen_weights", FrozenWeights.FP8),
        ({"source_id": "mlperf_lora", "gpu": "H100-SXM-80GB", "precision": "fp8"}, "frozen_weights", None),
        ({"source_id": "mlperf_training", "notes": "SP=0 FP8_DPA=0; NeMo"}, "attention_format", None),
        ({"source_id": "ours", "recompute": "selective (op)"}, "selective", SelectiveRecompute.EVERY_SECOND_PRODUCT),
        ({"source_id": "ours", "notes": "kernel=torch; RMS kernel"}, "kernels", None),
    ],
)
def test_words_of_a_row_state_its_implementation(tmp_path: Path, changes: dict[str, str], field: str, expected: object) -> None:
    assert getattr(run(tmp_path, **changes).implementation, field) == expected


def test_words_of_one_source_mean_nothing_without_a_mapping(tmp_path: Path) -> None:
    words = {
        "notes": "case (lts_dgxa100_dracooci); kernel=torch; RMS kernel; defer_embedding_wgrad_compute",
        "flash_attention": "",
    }
    row = read_measured_runs(write_table(tmp_path / "m.csv", words), NO_SOURCES)[0].run
    assert row.implementation == NOTHING_STATED


def test_columns_fill_what_is_empty_and_instead_replaces(tmp_path: Path) -> None:
    rules = (
        RowRule("a", where={"model": "llama"}, columns={"seq_len": 512, "vpp": 2}),
        RowRule("b", instead={"zero_stage_or_fsdp": "1"}, implementation=StatedImplementation(kernels=VectorKernels.EAGER)),
        RowRule("c", where={"model": "another"}, instead={"tp": 1}),
    )
    table = write_table(tmp_path / "m.csv", {"zero_stage_or_fsdp": "2"})
    row = read_measured_runs(table, Sources(sources={"ours": Source("we ran it", rows=rules)}))[0].run
    assert (row.seq_len, row.vpp, row.zero, row.tp) == (4096, 2, "1", 4)
    assert row.implementation.kernels is VectorKernels.EAGER and row.implementation.attention_kernels is not None


def test_a_rule_s_model_takes_the_place_of_columns(tmp_path: Path) -> None:
    plan = {"gpu": "B200", "dp": "8", "tp": "1", "pp": "1", "ep": "8"}
    model = costed_run(run(tmp_path, source_id="simumax_b200", model="DeepSeek-V3-4L", **plan)).request.model
    assert model.dims["experts"] == 256 and len(model.layers) == 2 + 4


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"where": {"step_time_s": "1"}}, "where"),
        ({"columns": {"peak_mem_gb": 1}}, "columns"),
        ({"instead": {"source_id": "a"}}, "instead"),
        ({"where": {"notes": "("}}, "regular expression"),
        ({"named": "("}, "named is no regular expression"),
    ],
)
def test_a_faulty_rule_is_bad_input(fault: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        RowRule("basis", **fault)  # type: ignore[arg-type]
    assert words in str(raised.value)


def test_no_rule_reads_or_states_what_was_measured() -> None:
    assert not set(STATED_COLUMNS) & set(RESULT_COLUMNS)
    assert set(COLUMNS) >= set(RESULT_COLUMNS) and len(set(COLUMNS)) == len(COLUMNS)
    own = {"basis", "where", "named", "columns", "instead", "implementation", "model"}
    assert {each.name for each in fields(RowRule)} - own <= {each.name for each in fields(Source)}


def test_a_rule_states_the_format_of_gradients(tmp_path: Path) -> None:
    """Rows of bf16 add their gradients up in fp32, whatever the source says of all; the later of two rules counts."""
    rules = (
        RowRule("a test", where={"precision": "bf16"}, gradient_dtype=DType.BF16),
        RowRule("a test", where={"precision": "^bf16$"}, gradient_dtype=DType.FP32),
        RowRule("a test", columns={"sp": 1}),
    )
    sources = Sources(sources={"own": Source("a test", gradient_dtype=DType.FP16, rows=rules)})
    found = []
    for precision in ("fp16", "bf16"):
        table = write_table(tmp_path / f"{precision}.csv", {"source_id": "own", "precision": precision})
        found.append(costed_run(read_measured_runs(table, sources)[0].run).request.workload.gradient_dtype)
    assert found == [DType.FP16, DType.FP32]
