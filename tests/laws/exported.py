"""What is explained of a plan's command is what the plan says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

from meshwright.app.base.solving import predict_here, solve_here
from meshwright.app.launching.exporters import export
from meshwright.app.launching.exporters.launch import commands
from meshwright.app.launching.reading import read_command
from meshwright.app.service.explaining.explain import Question, ReadCommand, explained
from meshwright.costmodels.errors import ExportError, InvalidInputError
from meshwright.solver.answer.document import record_of
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.table import SERVERS, TRAINERS
from tests.laws.law import Law
from tests.support.requests_given import resolved
from tests.support.small_requests import SERVED, TRAINED, served, trained

LAUNCHED = (
    Launcher.MEGATRON_LM,
    Launcher.MEGATRON_BRIDGE,
    Launcher.NEMO,
    Launcher.NANOTRON,
    Launcher.MAXTEXT,
    Launcher.DEEPSPEED,
    Launcher.TORCHTITAN,
    Launcher.ACCELERATE,
    Launcher.TRL,
    Launcher.HF_TRAINER,
    Launcher.LLAMA_FACTORY,
    Launcher.AXOLOTL,
    Launcher.VLLM,
    Launcher.SGLANG,
    Launcher.TENSORRT_LLM,
)
"""Launchers whose commands are read; that of `pytorch` starts a program of ours."""
FIGURES = ("step_time_s", "tokens_per_s", "peak_memory_bytes", "ttft_p95_s", "tpot_p95_s")


def is_the_plan(launcher: Launcher, of_training: dict[str, Any], of_serving: dict[str, Any]) -> None:
    asked = of_training | {"space": "launchable"}
    search = {"launcher": launcher.value}
    document = trained(asked, **search) if launcher in TRAINERS else served(of_serving, **search)
    if launcher in SERVERS:
        document["search"]["engine"] = SERVERS[launcher].engine.value
    try:
        request = resolved(document)
        plan = solve_here(request)
        written = export(plan, request, launcher.value) if plan.feasible else None
    except (InvalidInputError, ExportError):
        return
    # What no flag expresses the export says beside its command.
    if written is None or written.inexpressible:
        return
    command = commands(written)
    read = read_command(command)
    found = explained(ReadCommand(command, read, Question({}, ()), request))
    assert found.problems == (), found.problems
    assert found.plan is not None and found.at_load is not None and found.plan.predicted is not None
    assert found.plan.feasible
    said = predict_here(found.at_load, plan).predicted
    own, again = record_of(plan), record_of(found.plan)
    assert said is not None and own.axes is not None and again.axes is not None
    if launcher is Launcher.ACCELERATE and again.microbatch != own.microbatch:
        # On devices that share no state the script sets it: the export says so.
        assert any("micro-batch" in words or "batch" in words for words in written.assumptions)
        return
    # The command of equal servers starts one of them.
    is_one = launcher in SERVERS and again.axes.dp != own.axes.dp
    assert replace(again.axes, dp=own.axes.dp if is_one else again.axes.dp) == own.axes
    for name in ("peak_memory_bytes",) if is_one else FIGURES:
        assert getattr(found.plan.predicted, name) == pytest.approx(getattr(said, name)), name


LAW = Law(
    sentence="What is explained of a plan's command is what the plan says.",
    drawn={"launcher": st.sampled_from(LAUNCHED), "of_training": TRAINED, "of_serving": SERVED},
    check=is_the_plan,
    few=5,
    many=120,
    most=1500,
    draw_s=0.31,
)
