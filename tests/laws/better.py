"""What is planned is never worse than what is called better, nor than the command that is explained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from meshwright.app.base.solving import solve_here
from meshwright.app.requests.one_line import request_of_line
from meshwright.app.requests.options import OneLine, Task
from meshwright.app.service.explaining.explain import asked_of, explained, with_better
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.problem.choices import Launcher
from tests.laws.law import Law
from tests.support.requests_given import resolved
from tests.support.small_requests import MODELS

TIE = 1e-9
GRID = 0.01
"""Rates of serving plans are searched on a grid of 1%."""

_TRAINERS = st.builds(
    (
        "accelerate launch --num_processes 8 {} train.py --model_name_or_path a/b --bf16 {} --per_device_train_batch_size {}"
    ).format,
    st.sampled_from(
        [
            "--multi_gpu",
            "--use_deepspeed --zero_stage 1",
            "--use_deepspeed --zero_stage 3",
            "--use_fsdp --fsdp_sharding_strategy FULL_SHARD",
        ]
    ),
    st.sampled_from(["", "--gradient_checkpointing"]),
    st.sampled_from([1, 2, 4]),
)
_SERVERS = st.builds(
    "vllm serve a/b --tensor-parallel-size {} --max-num-seqs {}".format, st.sampled_from([1, 2, 4]), st.sampled_from([8, 256])
)
_LOADS = st.fixed_dictionaries(
    {
        Launcher.ACCELERATE: st.builds(
            lambda seq, batch: OneLine("a/b", gpus="8xH100", seq=seq, batch=batch, task=Task.TRAIN),
            st.sampled_from(["128", "256", "512"]),
            st.sampled_from(["16", "32", "96"]),
        ),
        Launcher.VLLM: st.builds(
            lambda isl, osl, rate: OneLine("a/b", gpus="8xH100", isl=isl, osl=osl, rate=rate, task=Task.SERVE),
            st.sampled_from(["20", "200", "900"]),
            st.sampled_from(["2", "20"]),
            st.sampled_from(["0.5", "4"]),
        ),
    }
)


def is_no_worse(command: str, loads: dict[Launcher, OneLine], model: str, objective: str) -> None:
    launcher = Launcher(command.split()[0])
    line = replace(loads[launcher], objective=objective if launcher is Launcher.VLLM else None)
    source: dict[str, Any] = {"config": MODELS[model], "name": model}
    try:
        found = with_better(explained(asked_of(command, line, resolved, model_of=lambda _: source)), solve_here)
    except InvalidInputError:
        return
    plan = solve_here(resolved(request_of_line(replace(line, launcher=launcher.value), source=source)))
    own = found.most or found.plan
    theirs = [found.better.plan if found.better else None, own if not found.problems and found.reason is None else None]
    for each in theirs:
        if each is None:
            continue
        assert plan.feasible
        found_s, said_s = plan.certificate.objective, each.certificate.objective
        assert found_s is not None and said_s is not None and plan.certificate.unit == each.certificate.unit
        assert found_s <= said_s * (1 + (GRID if launcher is Launcher.VLLM else TIE)), (found_s, said_s)


LAW = Law(
    sentence="What is planned is never worse than what is called better.",
    drawn={
        "command": _TRAINERS | _SERVERS,
        "loads": _LOADS,
        "model": st.sampled_from(["dense", "experts"]),
        "objective": st.sampled_from(["throughput", "devices"]),
    },
    check=is_no_worse,
    few=4,
    many=80,
    most=300,
    draw_s=0.5,
)
