"""The facts in the words of rows."""

from __future__ import annotations

import pytest

from meshwright.app.validation.notes import stated_attention_kernels, stated_flash_attention, stated_loss, stated_tensor_overlap
from meshwright.costmodels.model.implementation import AttentionKernels, LossKernels, TensorOverlap

H100_2024 = "pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md Table 1"
H200_2025 = "pytorch/torchtitan benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md"
ASYNC_TP_2025 = "pytorch/torchtitan benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md"


@pytest.mark.parametrize(
    ("source", "notes", "expected"),
    [
        (H100_2024, "bf16 compile; GiB", None),
        (H200_2025, "compile+fp8 allgather", LossKernels.COMPILED),
        (ASYNC_TP_2025, "vanilla TP; compile", LossKernels.COMPILED),
        (H200_2025, "bf16 eager", None),
        ("Megatron-LM", "case gpt3_te_tp2_pp2_cross_entropy_loss_fusion (dev_dgx_h100)", LossKernels.FUSED_IN_PARTS),
        ("Megatron-LM", "case gpt3_te_tp2_pp2 (dev_dgx_h100)", None),
    ],
)
def test_torchtitan_compiles_its_loss_from_april_2025(source: str, notes: str, expected: LossKernels | None) -> None:
    assert stated_loss(source, notes) is expected


@pytest.mark.parametrize(
    ("notes", "given", "expected"),
    [
        ("case gpt3_mcore_te_tp2_pp2 (lts_dgxa100_dracooci)", 1, 0),
        ("case gpt3_mcore_te_tp2_pp2 (lts_dgxa100_dracooci-ord)", 1, 0),
        ("case gpt3_mcore_te_tp2_pp2_nondeterministic (lts_dgxa100_dracooci)", 1, 1),
        ("case gpt3_mcore_te_tp2_pp2 (dev_dgx_a100)", 1, 1),
        ("case gpt3_mcore_te_tp2_pp2 (lts_dgxa100_dracooci)", 0, 0),
        ("case gpt3_mcore_te_tp2_pp2 (lts_dgxa100_dracooci)", None, None),
    ],
)
def test_an_old_container_runs_deterministic_attention_unfused(notes: str, given: int | None, expected: int | None) -> None:
    assert stated_flash_attention(notes, given) == expected


@pytest.mark.parametrize(
    ("notes", "given", "expected"),
    [
        ("kernel=torch; x", 0, AttentionKernels.STEP_BY_STEP),
        ("kernel=fused; x", 0, AttentionKernels.UNFUSED),
        ("kernel=torch; x", 2, AttentionKernels.FUSED),
        ("", None, None),
    ],
)
def test_pytorch_s_softmax_runs_step_by_step(notes: str, given: int | None, expected: AttentionKernels | None) -> None:
    assert stated_attention_kernels(notes, given) is expected


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ("async TP; compile; tokens/s taken as per-GPU", TensorOverlap.SYMMETRIC_MEMORY),
        ("vanilla TP; compile; tokens/s taken as per-GPU", None),
        ("case gpt3_weekly_mcore_tp2_pp2_native_fp8_tp_pp_sp_tp_overlap (dev_dgx_h100)", TensorOverlap.USERBUFFERS),
        ("case gpt3_mcore_tp1_pp2 (dev_dgx_h100); overlap_grad_reduce=False", None),
    ],
)
def test_rows_say_how_gathers_and_scatters_run(notes: str, expected: TensorOverlap | None) -> None:
    assert stated_tensor_overlap(notes) is expected
