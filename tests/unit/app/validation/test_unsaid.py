"""What rows of a table without a mapping leave unsaid is told by their words, shown, and measured by what it would move."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.app.evidence.training import sensitivity
from meshwright.app.evidence.training.plans import assumptions, given_plan
from meshwright.app.evidence.training.prediction import predict_run
from meshwright.app.evidence.training.rows import Run, read_measured_runs
from meshwright.app.evidence.training.sensitivity import UnsaidWord, moving_most, unsaid_words
from meshwright.app.evidence.training.stated import MemoryCount, MemoryRank
from meshwright.app.evidence.training.unsaid import UNSAID
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.implementation import HostPath
from meshwright.costmodels.units import DType
from meshwright.solver.blocks.tp_strategies import REPLICATED
from tests.support.command_line import Cli
from tests.unit.app.validation.tables import MAPPING, write_table

GPT = {"model": "gpt", "arch": "dense-gelu", "kv_heads": "32", "ffn_hidden": "16384", "precision": "fp16"}
UNFUSED = {**GPT, "flash_attention": "0"}
MOE = {"arch": "moe-gated", "n_experts": "8", "top_k": "2", "dp": "4", "tp": "2", "pp": "1", "ep": "2"}


def strangers(folder: Path, **changes: str) -> Run:
    """Return the run of a row that no mapping names."""
    return read_measured_runs(write_table(folder / "strangers.csv", changes))[0].run


@pytest.mark.parametrize(
    ("changes", "profile"),
    [
        ({}, "megatron-core-0.20"),
        ({"notes": "our DeepSpeed runs"}, "deepspeed-0.19"),
        ({"source": "pytorch/torchtitan docs"}, "torchtitan-0.3"),
        ({"source": "mosaicml/llm-foundry"}, "composer"),
        ({"source": "InternLM/InternEvo"}, "internevo"),
        ({"notes": "PaddleNLP"}, "paddlenlp"),
        ({"notes": "MaxText"}, "maxtext"),
        ({"notes": "NeMo Automodel"}, "hand-fused"),
        ({"notes": "Hugging Face Trainer"}, "hf-trainer"),
        ({"notes": "AA-Scaling"}, "aleph-alpha-scaling"),
        ({"zero_stage_or_fsdp": "fsdp3"}, "torchtitan-0.3"),
        ({"zero_stage_or_fsdp": "fsdp3", "notes": "Megatron-Bridge"}, "megatron-core-0.20"),
        ({"gpu": "Ascend-910B"}, "mindspeed-2"),
        (UNFUSED, "megatron-lm-2022"),
        ({**UNFUSED, "schedule": "1f1b (DeepSpeed)"}, "megatron-deepspeed-2022"),
        ({**UNFUSED, "notes": "gpt3_mcore_tp2"}, "megatron-core-0.20"),
        ({**GPT, "notes": "Megatron-DeepSpeed"}, "megatron-deepspeed-2022"),
        ({**GPT, "flash_attention": "", "source": "ours, arXiv 2104.04473"}, "megatron-lm-2022"),
        ({**GPT, "flash_attention": "", "source": "ours, 2024"}, "megatron-core-0.20"),
        ({"notes": "nemotron", "source": "untrl"}, "megatron-core-0.20"),
        ({"notes": "transformers that accelerate; a composer"}, "megatron-core-0.20"),
    ],
)
def test_the_framework_is_known_by_its_name_chip_or_year(tmp_path: Path, changes: dict[str, str], profile: str) -> None:
    stated = given_plan(strangers(tmp_path, **changes)).request.workload.implementation
    assert stated is not None and stated.profile == profile


@pytest.mark.parametrize(
    ("changes", "field", "word"),
    [
        ({"notes": "torch.compile"}, "kernels", "compiled"),
        ({"notes": "bf16 compile"}, "kernels", "compiled"),
        ({"notes": "no torch.compile"}, "kernels", "fused"),
        ({"notes": "compile=False"}, "kernels", "fused"),
        ({"notes": "compiled from two tables"}, "kernels", "fused"),
        ({"notes": "async TP"}, "tensor_overlap", "symmetric-memory"),
        ({"notes": "TP_COMM_OVERLAP=True"}, "tensor_overlap", "userbuffers"),
        ({"notes": "TP_COMM_OVERLAP=False"}, "tensor_overlap", "weight-gradient"),
        ({"notes": "LAYER_CUDA_GRAPH=1"}, "host", "cuda-graphs"),
        ({"notes": "FP8_DPA=1"}, "attention_format", "fp8"),
        ({"notes": "FP8_DPA=0"}, "attention_format", "working"),
        ({"notes": "FP8_ACT=1"}, "gated_inputs", "fp8"),
        ({"notes": "FP8_ACTIVATION=True"}, "gated_inputs", "fp8"),
        ({"notes": "LoRA"}, "trained", "adapters"),
        ({"notes": "without LoRA"}, "trained", "all"),
        ({**GPT, "flash_attention": "", "source": "2021"}, "attention_kernels", "unfused"),
    ],
)
def test_choices_are_known_by_their_names(tmp_path: Path, changes: dict[str, str], field: str, word: str) -> None:
    assert getattr(given_plan(strangers(tmp_path, **changes)).request.workload.implementation, field) == word


@pytest.mark.parametrize(
    ("changes", "zero_stage", "gradients", "sequence_parallel"),
    [
        ({}, 0, DType.FP32, False),
        ({"gpu": "H100-SXM-80GB"}, 1, DType.FP32, True),
        ({"gpu": "H100-SXM-80GB", "sp": "0", "zero_stage_or_fsdp": "0"}, 0, DType.FP32, False),
        ({"notes": "NeMo"}, 1, DType.BF16, True),
        ({"source": "mlcommons/training_results"}, 1, DType.BF16, False),
        ({"precision": "fp16"}, 0, DType.FP16, False),
        ({"zero_stage_or_fsdp": "2"}, 1, DType.FP32, False),
        ({"zero_stage_or_fsdp": "2", "pp": "1", "dp": "2"}, 2, DType.FP32, False),
    ],
)
def test_places_of_state_follow_chip_framework_and_format(
    tmp_path: Path, changes: dict[str, str], zero_stage: int, gradients: DType, sequence_parallel: bool
) -> None:
    plan = given_plan(strangers(tmp_path, **changes))
    assert (plan.candidate.zero_stage, plan.request.workload.gradient_dtype) == (zero_stage, gradients)
    assert (plan.candidate.boundary != REPLICATED) is sequence_parallel


def test_recipes_of_nemo_hold_experts_whole(tmp_path: Path) -> None:
    assert given_plan(strangers(tmp_path, **MOE, notes="NeMo")).candidate.mesh.etp == 1
    assert given_plan(strangers(tmp_path, **MOE)).candidate.mesh.etp is None


@pytest.mark.parametrize(
    ("model", "vocab"),
    [("Llama-2-70B", 32_000), ("LLaMA-30B", 32_000), ("Llama 3.1 8B", 128_256), ("llama3-8b", 128_256), ("Llama-4", 50_257)],
)
def test_a_vocabulary_is_that_of_the_model_s_name(tmp_path: Path, model: str, vocab: int) -> None:
    assert strangers(tmp_path, model=model, vocab="").vocab == vocab
    assert strangers(tmp_path, model=model, vocab="999").vocab == 999


def test_mamba_on_ascend_has_the_vocabulary_of_its_scripts(tmp_path: Path) -> None:
    mamba = {"model": "ours", "arch": "mamba2 state=64", "vocab": ""}
    assert strangers(tmp_path, **mamba, gpu="Ascend-910B").vocab == 256_000
    assert strangers(tmp_path, **mamba).vocab == 50_257


def test_four_bits_are_a_flag_beside_an_eight_bit_cell(tmp_path: Path) -> None:
    for notes, recipe in (("FP8=False FP4=True", MatmulRecipe.NVFP4), ("FP4=False", MatmulRecipe.FP8_DELAYED)):
        asked = strangers(tmp_path, gpu="B200", gpus_per_node="8", precision="fp8", notes=notes)
        assert given_plan(asked).request.workload.matmul is recipe


def test_fp8_is_the_framework_s_recipe(tmp_path: Path) -> None:
    recipes = [
        given_plan(strangers(tmp_path, gpu="H100-SXM-80GB", precision="fp8", notes=notes)).request.workload.matmul
        for notes in ("", "NeMo", "Megatron-Bridge", "torchtitan")
    ]
    assert recipes == [MatmulRecipe.FP8_DELAYED] * 2 + [MatmulRecipe.FP8_CURRENT] * 2


@pytest.mark.parametrize(
    ("notes", "count", "rank", "unit"),
    [
        ("", MemoryCount.PROCESS, MemoryRank.FULLEST, 2**30),
        ("torch.cuda.max_memory_allocated, last rank, in 1e9 bytes", MemoryCount.ALLOCATED, MemoryRank.LAST_STAGE, 10**9),
        ("max_memory_reserved of rank 0", MemoryCount.RESERVED, MemoryRank.FIRST_STAGE, 2**30),
        ("average memory by nvidia-smi; torchtitan", MemoryCount.PROCESS, MemoryRank.MEAN, 2**30),
        ("torchtitan", MemoryCount.RESERVED, MemoryRank.FULLEST, 2**30),
        ("all rights reserved; 8 nodes allocated; first stage", MemoryCount.PROCESS, MemoryRank.FULLEST, 2**30),
    ],
)
def test_memory_is_the_one_that_notes_name(tmp_path: Path, notes: str, count: MemoryCount, rank: MemoryRank, unit: int) -> None:
    reading = strangers(tmp_path, notes=notes).reading
    assert (reading.memory_count, reading.memory_rank, reading.memory_unit_bytes) == (count, rank, unit)


def test_each_rule_that_held_is_shown_and_a_mapped_row_has_none(tmp_path: Path) -> None:
    run = strangers(tmp_path, notes="PaddleNLP", zero_stage_or_fsdp="2", pp="2")
    shown = assumptions(run)
    assert "PaddleNLP" in shown and any("ZeRO-2 beside pipelines" in words for words in shown)
    assert "whole training state on every replica" in assumptions(strangers(tmp_path))
    assert "whole training state on every replica" not in assumptions(strangers(tmp_path, notes="NeMo"))
    assert all(rule.basis for rule in UNSAID)


def test_unsaid_words_are_those_that_rows_leave_open(tmp_path: Path) -> None:
    silent = strangers(tmp_path, recompute="", zero_stage_or_fsdp="", sp="", seq_len="128")  # the host decides
    words = {(each.name, each.word): each for each in unsaid_words([(silent, predict_run(silent))])}
    graphs, full = words["implementation.host", HostPath.CUDA_GRAPHS], words["recompute", "full"]
    assert graphs.time < 1 and graphs.memory == pytest.approx(1) and full.time > 1.2 and full.memory < 1
    assert {"zero_stage_or_fsdp", "sp", "gradient_dtype"} <= {name for name, _ in words}
    said = strangers(tmp_path, notes="CUDA_GRAPH=1", zero_stage_or_fsdp="1", sp="1")
    names = {each.name for each in unsaid_words([(said, predict_run(said))])}
    assert names and not names & {"implementation.host", "recompute", "zero_stage_or_fsdp", "sp", "implementation.trained"}
    again = unsaid_words([(silent, predict_run(silent))])
    assert again == tuple(words.values())


def test_few_rows_are_tried_whatever_the_table_s_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = strangers(tmp_path)
    monkeypatch.setattr(sensitivity, "ROWS_TRIED", 2)
    assert {each.rows for each in unsaid_words([(silent, predict_run(silent))] * 5)} == {2}


def test_what_moves_most_comes_first_once_a_name() -> None:
    words = [
        UnsaidWord("a", "little", 4, 1.1, 1.0),
        UnsaidWord("b", "much on one row", 1, 0.5, 1.0),
        UnsaidWord("c", "most", 4, 0.5, 1.001),
        UnsaidWord("c", "more", 4, 1.9, 1.0),
        UnsaidWord("d", "hardly", 4, 1.05, 2.0),
    ]
    assert [each.word for each in moving_most(words, lambda word: word.time)] == ["most", "much on one row", "little"]
    assert [each.word for each in moving_most(words, lambda word: word.memory)] == ["hardly"]


def test_the_page_and_the_document_say_what_would_move_rows_most(cli: Cli) -> None:
    table = write_table(cli.folder / "m.csv", {"recompute": ""}, {})
    assert cli("validate", str(table)) == 0
    page = " ".join(cli.out.split())
    assert "Not said by rows" in page and "recompute full: 1." in page and "times slower (1 row)" in page
    assert cli("validate", str(table), "--json") == 0
    unsaid = json.loads(cli.out)["unsaid"]
    assert {"name", "word", "rows", "time", "memory"} == set(unsaid[0])
    mapped = write_table(cli.folder / "mapped.csv", {"source_id": "paddlenlp"})
    assert cli("validate", str(mapped), "--sources", str(MAPPING)) == 0
    assert "Not said by rows" not in cli.out
