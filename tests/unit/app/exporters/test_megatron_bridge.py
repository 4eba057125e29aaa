"""Settings of Megatron-Bridge: what its own grammar reads, and what `explain` reads back."""

from __future__ import annotations

import shlex
from dataclasses import fields
from functools import cache
from typing import Any

import pytest

from meshwright.app.launching.exporters import Export, export
from meshwright.app.launching.reading import read_command
from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import ExportError, WorkloadError
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, Recompute, TpOverlap
from meshwright.solver.problem.declared.rank_order import RankOrder
from meshwright.solver.problem.request import PlanRequest, TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training
from tests.unit.app.exporters.plans import arguments, cluster, interleaved, training
from tests.unit.app.exporters.real_tools import ask

Case = tuple[Plan, PlanRequest]
CASES = 9


def settings(found: Export) -> dict[str, str]:
    """Keys of a command with their values."""
    words = [str(word) for word in arguments(found)]
    return dict(word.split("=", 1) for word in words if "=" in word and "." in word.split("=", 1)[0])


def planned(name: str, *, nodes: int = 1, at: Cluster | None = None, **search: Any) -> Case:
    """The plan that is found in the launcher's own space."""
    asked = Search(launcher=Launcher.MEGATRON_BRIDGE, max_candidates=40, **search)
    workload = TrainingWorkload("training", global_batch=64, seq_len=4096)
    request = TrainingRequest(model(name), at or cluster(nodes), workload, search=asked)
    return plan_training(request, progress=ignore_progress, stop=never_stop), request


@cache
def cases() -> list[Case]:
    """Plans with each thing that a setting says."""
    plan, request = training(pp=2)
    return [
        training(
            dp=2, tp=2, pp=4, cp=2, layers=[7, 9, 9, 7], zero_stage=1, sequence_parallel=True, microbatch=2,
            recompute=(Recompute.SELECTIVE,),
        ),
        (interleaved(plan, [(9, 8), (8, 9)]), request),
        training(dp=4, pp=2, zero_stage=1, rank_order=RankOrder.DP_OUTERMOST, recompute=(Recompute.FULL,)),
        training(dp=8, zero_stage=3, recompute=(Recompute.FINE_GRAINED,)),
        training(dp=4, tp=2, sequence_parallel=True, tp_overlap=TpOverlap.CHUNKED, gradient_dtype=DType.BF16),
        training("gpt2-xl", dp=2, zero_stage=1, precision=DType.FP16, seq_len=1024),
        training("qwen3-8b", dp=2, zero_stage=1, optimizer=Optimizer.ADAMW_BF16),
        training(dp=2, precision=DType.FP32, optimizer=Optimizer.SGD_MOMENTUM),
        planned("mixtral-8x7b", nodes=4, tp=(2,), ep=(4,)),
    ]  # fmt: skip


@pytest.mark.parametrize("case", range(CASES))
def test_settings_are_read_back_as_megatron_lm_flags_are(case: int) -> None:
    ours, theirs = (read_command(export(*cases()[case], name).command) for name in ("megatron-bridge", "megatron-lm"))
    assert ours.launcher is Launcher.MEGATRON_BRIDGE
    differ = [each.name for each in fields(theirs) if getattr(ours, each.name) != getattr(theirs, each.name)]
    assert sorted(differ) == ["given", "launcher"]
    assert {flag.standing.value for flag in ours.given} <= {"read", "harmless"}


def test_the_recipe_is_told_what_its_defaults_would_do_otherwise() -> None:
    found = settings(export(*training(dp=2), "megatron-bridge"))
    assert found["ddp.use_distributed_optimizer"] == found["optimizer.use_distributed_optimizer"] == "false"
    assert "mixed_precision=null" in export(*training(dp=2), "megatron-bridge").command
    assert found["ddp.grad_reduce_in_fp32"] == "true"
    assert found["model.cross_entropy_loss_fusion"] == "false"


def test_a_layout_is_quoted_for_the_shell_and_for_hydra() -> None:
    found = export(*training(pp=4, layers=[7, 9, 9, 7]), "megatron-bridge")
    assert "model.pipeline_model_parallel_layout='Et*7|t*9|t*9|t*7L'" in shlex.split(found.command.replace("\\\n", " "))


def test_moments_of_8_bits_and_latent_attention_are_refused() -> None:
    with pytest.raises(ExportError, match="adamw_8bit"):
        export(*training(dp=2, zero_stage=1, optimizer=Optimizer.ADAMW_8BIT), "megatron-bridge")
    with pytest.raises(WorkloadError, match="latent attention"):
        planned("deepseek-v2")


def test_its_own_grammar_and_megatron_core_read_the_settings() -> None:
    exports = [export(*each, "megatron-bridge") for each in cases()]
    assert len(exports) == CASES
    words = [[word for word in map(str, arguments(each)) if "=" in word] for each in exports]
    told = ask("hydra", "megatron_bridge_settings.py", [{"settings": _of_recipe(each)} for each in words])
    assert [answer.get("error") for answer in told] == [None] * len(told)
    assert told[0]["said"] == {
        "layers": 32, "virtual": None, "degrees": [2, 4, 2, 1], "recompute": "selective", "batch": [2, 64], "distributed": True
    }  # fmt: skip
    assert told[1]["said"]["virtual"] == 2
    assert told[-1]["said"]["degrees"][3] == 4


def _of_recipe(words: list[str]) -> list[str]:
    return [word for word in words if word.split("=")[0].split(".")[0].islower()]
