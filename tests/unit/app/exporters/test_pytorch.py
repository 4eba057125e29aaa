"""The exported PyTorch program trains as one process does: losses and gradients of planned layouts on four gloo processes."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.torch_truth.training import planned, trained
from meshwright.app.launching.exporters import export
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.units import DType
from meshwright.solver.problem.choices import Recompute
from tests.unit.app.exporters.plans import training

STEP_0 = 1e-5
"""Relative difference of gradients that sums in another order make in fp32."""


def test_a_planned_layout_trains_as_one_process_does() -> None:
    """Tensor parallelism on two processes; `benchmarks.torch_truth` runs layouts of every axis and schedule on four."""
    given = planned(2, dp=(1,), tp=(2,), pp=(1,), recompute=(Recompute.FULL,), microbatch=(8,))
    (told,) = trained([given])
    assert told.loss < 1e-6
    assert told.gradients < STEP_0


def test_the_plan_is_said_beside_a_program_that_is_always_the_same() -> None:
    first = export(*training(dp=2, tp=2, pp=2, zero_stage=3, sequence_parallel=True, recompute=(Recompute.FULL,)), "pytorch")
    other = export(*training("qwen3-14b", dp=8, zero_stage=2, layers=[40]), "pytorch")
    assert first.files["train.py"] == other.files["train.py"]
    compile(first.files["train.py"], "train.py", "exec")
    told = json.loads(first.files["plan.json"])
    assert told["parts"] == [
        {"layers": [0, 16], "embedding": True, "head": False},
        {"layers": [16, 32], "embedding": False, "head": True},
    ]
    assert (told["parts_of_rank"], told["schedule"], told["recompute"]) == ([[0], [1]], "1F1B", True)
    assert told["model"]["rotary_base"] == 500000.0
    assert told["model"]["rotary_scaling"] == {
        "factor": 8.0, "original_positions": 8192, "low_frequency": 1.0, "high_frequency": 4.0,
    }  # fmt: skip
    assert json.loads(other.files["plan.json"])["model"]["qk_norm"] is True


@pytest.mark.parametrize(("name", "layers"), [("gpt2-xl", 48), ("mixtral-8x7b", 32), ("gemma-2-9b", 42), ("deepseek-v3", 61)])
def test_models_of_other_layers_are_refused_by_what_they_have(name: str, layers: int) -> None:
    with pytest.raises(ExportError, match="the layers of its decoders are Llama's"):
        export(*training(name, dp=8, seq_len=1024, layers=[layers]), "pytorch")


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"dp": 4, "cp": 2}, "context parallelism"),
        ({"dp": 8, "recompute": (Recompute.SELECTIVE,)}, "whole layers"),
        ({"dp": 8, "optimizer": Optimizer.MUON}, "muon; it has adamw, sgd_momentum"),
        ({"dp": 8, "precision": DType.FP16}, "fp16; it trains in bf16 and fp32"),
    ],
)
def test_what_the_program_has_not_is_refused(given: dict[str, Any], refused: str) -> None:
    with pytest.raises(ExportError, match=refused):
        export(*training(**given), "pytorch")


def test_what_a_pipeline_does_otherwise_is_said() -> None:
    lost = export(*training(dp=2, pp=2, zero_stage=3), "pytorch").inexpressible
    assert any("whole gradients of its stage" in line for line in lost)
    assert export(*training(dp=8, zero_stage=3), "pytorch").inexpressible == ()


def test_the_command_is_torchrun() -> None:
    assert shlex.split(export(*training(dp=8), "pytorch").command.replace("\\\n", " "))[-1] == "train.py"
    plan, request = training(dp=8)
    hostile = replace(plan, model="x'; touch y"), replace(request, model=replace(request.model, name="x'; touch y"))
    assert export(*hostile, "pytorch").files == export(plan, request, "pytorch").files
