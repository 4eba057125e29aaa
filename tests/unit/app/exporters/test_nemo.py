"""NeMo's script: arguments that its calls have, and what `explain` reads back, as of Megatron-LM's flags."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

import pytest

from meshwright.app.launching.exporters import export
from meshwright.app.launching.exporters.launch import script
from meshwright.app.launching.launchers.nemo import SCRIPT
from meshwright.app.launching.parts.launch_files import LaunchFiles
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.app.launching.reading import read_command
from meshwright.app.models.catalog import model
from meshwright.costmodels.errors import ExportError, InvalidInputError, WorkloadError
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, Recompute, TpOverlap
from meshwright.solver.problem.declared.rank_order import RankOrder
from meshwright.solver.problem.request import PlanRequest, TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training
from tests.unit.app.exporters.plans import cluster, interleaved, training
from tests.unit.app.exporters.real.nemo_arguments import unknown
from tests.unit.app.exporters.real_tools import ask

Case = tuple[Plan, PlanRequest]
CASES = 9


def planned(name: str, *, nodes: int = 1, **search: Any) -> Case:
    """The plan that is found in the launcher's own space."""
    asked = Search(launcher=Launcher.NEMO, max_candidates=40, **search)
    request = TrainingRequest(
        model(name), cluster(nodes), TrainingWorkload("training", global_batch=64, seq_len=4096), search=asked
    )
    return plan_training(request, progress=ignore_progress, stop=never_stop), request


@cache
def cases() -> list[Case]:
    """Plans with each thing that an argument says."""
    plan, request = training(pp=2)
    return [
        training(
            dp=2, tp=2, pp=4, cp=2, layers=[7, 9, 9, 7], zero_stage=1, sequence_parallel=True, microbatch=2,
            recompute=(Recompute.SELECTIVE,),
        ),
        (interleaved(plan, [(9, 8), (8, 9)]), request),
        training(dp=4, pp=2, zero_stage=1, rank_order=RankOrder.DP_OUTERMOST, recompute=(Recompute.FULL,)),
        training(dp=8, recompute=(Recompute.FINE_GRAINED,)),
        training(dp=4, tp=2, sequence_parallel=True, tp_overlap=TpOverlap.CHUNKED, gradient_dtype=DType.BF16),
        training("gpt2-xl", dp=2, zero_stage=1, precision=DType.FP16, seq_len=1024),
        training("qwen3-8b", dp=2, zero_stage=1, optimizer=Optimizer.ADAMW_BF16),
        training(dp=2, precision=DType.FP32, optimizer=Optimizer.SGD_MOMENTUM),
        planned("mixtral-8x7b", nodes=4, tp=(2,), ep=(4,)),
    ]  # fmt: skip


def differing(ours: object, theirs: object) -> list[str]:
    return [each.name for each in fields(StatedTraining) if getattr(ours, each.name) != getattr(theirs, each.name)]


@pytest.mark.parametrize("case", range(CASES))
def test_its_calls_have_the_arguments_and_explain_reads_them_back(case: int) -> None:
    assert len(cases()) == CASES
    found, flags = (export(*cases()[case], name) for name in ("nemo", "megatron-lm"))
    assert list(unknown(found.files[SCRIPT])) == []
    ours, theirs = read_command(found.command, LaunchFiles(found.files)), read_command(flags.command)
    assert ours.launcher is Launcher.NEMO
    assert sorted(differing(ours, theirs)) == ["given", "launcher"]
    assert isinstance(ours, StatedTraining)
    assert {flag.standing.value for flag in ours.given} <= {"read", "harmless"}
    # A script alone, and a launch script that writes it, say the same.
    assert differing(read_command(found.files[SCRIPT]), ours) in ([], ["environment"])
    assert differing(read_command(script(found)), ours) in ([], ["notes"])


def test_a_recipe_of_nemo_run_is_read_as_calls_are() -> None:
    text = """
import nemo_run as run
from nemo import lightning as nl
from nemo.collections import llm

def recipe(nodes: int):
    strategy = run.Config(nl.MegatronStrategy, tensor_model_parallel_size=4, sequence_parallel=True, fsdp=None)
    return run.Config(nl.Trainer, devices=8, num_nodes=nodes, strategy=strategy)
"""
    stated = read_command(text)
    assert isinstance(stated, StatedTraining)
    assert (stated.launcher, stated.tp, stated.sequence_parallel, stated.world) == (Launcher.NEMO, 4, True, 8)
    assert [each.name for each in stated.given if each.standing.value == "not priced"] == ["--trainer.num_nodes"]


def test_a_script_that_is_no_python_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="not Python that can be read"):
        read_command("torchrun a.py", LaunchFiles({"a.py": "MegatronStrategy((" + "(" * 5000}))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda: training(dp=2, zero_stage=3), "it has 0, 1"),
        (lambda: training(dp=2, zero_stage=1, optimizer=Optimizer.ADAMW_8BIT), "adamw_8bit"),
    ],
)
def test_what_it_has_not_is_refused(broken: Any, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        export(*broken(), "nemo")


def test_searches_of_what_it_has_not_are_refused() -> None:
    with pytest.raises(WorkloadError, match="latent attention; experts in some layers and not in others"):
        planned("deepseek-v2")


def test_what_it_does_otherwise_is_said() -> None:
    assert any("stretched by llama3" in line for line in export(*training(dp=2), "nemo").inexpressible)


def test_megatron_core_makes_the_records_of_the_script() -> None:
    scripts = [{"script": export(*each, "nemo").files[SCRIPT]} for each in cases()]
    told = ask("megatron.core", "nemo_script.py", scripts)
    assert [answer.get("error") for answer in told] == [None] * CASES
    assert told[0]["said"] == {"layers": 32, "virtual": None, "degrees": [2, 4, 2, 1], "recompute": "selective"}
    assert told[1]["said"]["virtual"] == 2
    assert told[-1]["said"]["degrees"][3] == 4
