"""No part of memory or of time is below zero, and parts add up to the whole."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import strategies as st

from meshwright.app.base.solving import predict_here, solve_here
from meshwright.app.launching.parts.launch_files import NO_FILES
from meshwright.app.requests.options import OneLine
from meshwright.app.service.explaining.explain import asked_of, explained
from meshwright.app.service.explaining.explanation import Verdict
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.verify.violation import number_violations
from tests.laws.law import Law
from tests.support.flat_plans import flat
from tests.support.requests_given import resolved
from tests.support.small_requests import DOCUMENTS

BACKENDS = {
    "zero": "--use_deepspeed --zero_stage {stage}",
    "full": "--use_fsdp --fsdp_sharding_strategy FULL_SHARD",
    "hybrid": "--use_fsdp --fsdp_sharding_strategy HYBRID_SHARD --num_machines 2",
    "fsdp2": "--use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward {reshard}",
    "none": "--multi_gpu",
}
FORMATS = ("", "--use_peft", "--use_peft --load_in_4bit", "--use_peft --load_in_8bit", "--use_peft --load_in_4bit --use_dora")
# State on hosts and drives is in no sum; runs may have taken less than was counted.
NO_PARTS = {"capacity_bytes", "host_bytes", "nvme_bytes"}
CORRECTIONS = {"fragmentation_bytes", "learned_bytes"}


def require_parts(plan: Plan) -> None:
    """Raise AssertionError where a part of a feasible plan is below zero, or parts do not add up."""
    assert plan.predicted is not None
    assert not list(number_violations(plan))
    stages = flat(plan).stages
    for stage in stages:
        parts = {each.name: getattr(stage.memory, each.name) for each in dataclasses.fields(stage.memory)}
        assert all(value >= 0.0 for name, value in parts.items() if name not in CORRECTIONS), parts
        assert sum(value for name, value in parts.items() if name not in NO_PARTS) == pytest.approx(stage.memory.total_bytes)
    assert plan.predicted.peak_memory_bytes == pytest.approx(max(stage.memory.total_bytes for stage in stages))
    if plan.kind == "serving":
        return
    breakdown, step_s = flat(plan).breakdown, plan.predicted.step_time_s
    assert breakdown is not None and step_s is not None
    times_s = dataclasses.astuple(breakdown)
    assert all(each >= -1e-9 * step_s for each in times_s)
    assert sum(times_s) == pytest.approx(step_s)


def _of_command(words: dict[str, Any]) -> str:
    options = BACKENDS[words["backend"]].format(stage=words["stage"], reshard=str(words["reshard"]).lower())
    return (
        f"accelerate launch --num_processes {words['world']} {options} train.py --model_name_or_path a/b --bf16 "
        f"--gradient_checkpointing --per_device_train_batch_size {words['microbatch']} {words['adapter']}"
    )


TRAINERS = st.fixed_dictionaries(
    {
        "backend": st.sampled_from(list(BACKENDS)),
        "adapter": st.sampled_from(FORMATS),
        "stage": st.integers(0, 3),
        "reshard": st.booleans(),
        "microbatch": st.sampled_from([1, 2, 4]),
        "world": st.sampled_from([2, 8, 16]),
    }
).map(_of_command)
SERVERS = st.builds(
    "vllm serve a/b --tensor-parallel-size {} --max-num-seqs {} --gpu-memory-utilization {}".format,
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 8, 256]),
    st.sampled_from([0.5, 0.9]),
)
LINES = {
    "accelerate": OneLine("", gpus="2x8xH100", seq="1024"),
    "vllm": OneLine("", gpus="8xH100", isl="500", osl="50", rate="2"),
}


def add_up(asked: dict[str, Any] | str, model: str) -> None:
    try:
        if isinstance(asked, str):
            line = dataclasses.replace(LINES[asked.split()[0]], model=model)
            found = explained(asked_of(asked, line, resolved, NO_FILES))
            # A server that does not fit has no figures.
            plans = [] if found.verdict is Verdict.DOES_NOT_START or found.plan is None else [found.plan]
        else:
            request = resolved(asked)
            plan = solve_here(request)
            plans = [plan, predict_here(request, plan)] if plan.feasible else []
    except InvalidInputError:
        # Refused with a reason.
        return
    for plan in plans:
        require_parts(plan)


LAW = Law(
    sentence="No part of memory or of time is below zero, and parts add up to the whole.",
    drawn={
        "asked": TRAINERS | SERVERS | DOCUMENTS,
        "model": st.sampled_from(["llama-3.1-8b", "llama-3.1-70b", "qwen3-8b"]),
    },
    check=add_up,
    few=8,
    many=80,
    most=500,
    draw_s=0.5,
)
