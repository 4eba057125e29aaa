"""Commands of servers: an export read back is the plan that it was written from, and broken commands are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.app.launching.exporters import export
from meshwright.app.launching.exporters.launch import commands
from meshwright.app.launching.reading import read_command
from meshwright.app.requests.options import OneLine
from meshwright.app.service.explaining.explain import Question, ReadCommand, asked_of, explained, with_better
from meshwright.app.service.explaining.explanation import Difference, Explanation, Verdict
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.units import DType
from meshwright.solver.answer.layouts import Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.api import predict
from meshwright.solver.problem.choices import Launcher, Objective
from meshwright.solver.problem.request import PlanRequest, Slo
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import FixedLength
from tests.unit.app.explaining.resolving import resolve
from tests.unit.app.exporters.plans import serving

LINE = OneLine("", gpus="8xH100", isl="200", osl="20", rate="4", objective="devices")


def explanation(command: str, **options: str) -> Explanation:
    return explained(asked_of(command, replace(LINE, **options), resolve))


@pytest.mark.parametrize(
    ("launcher", "given"),
    [
        (Launcher.VLLM, {"tp": 8}),
        (Launcher.VLLM, {"tp": 4, "replicas": 2}),
        (Launcher.VLLM, {"tp": 4, "pp": 2}),
        (Launcher.VLLM, {"tp": 4, "precision": DType.FP8, "kv_dtype": DType.FP8}),
        (Launcher.VLLM, {"name": "qwen3-30b-a3b", "tp": 1, "attention_dp": 8, "ep": 8}),
        (Launcher.SGLANG, {"tp": 8}),
        (Launcher.SGLANG, {"tp": 2, "replicas": 4, "precision": DType.FP8}),
        (Launcher.SGLANG, {"name": "qwen3-30b-a3b", "tp": 1, "attention_dp": 8, "ep": 8}),
        (Launcher.TENSORRT_LLM, {"tp": 8}),
        (Launcher.TENSORRT_LLM, {"tp": 4, "pp": 2, "precision": DType.FP8, "kv_dtype": DType.FP8}),
        (Launcher.TENSORRT_LLM, {"name": "qwen3-30b-a3b", "tp": 1, "attention_dp": 8, "ep": 8}),
        (Launcher.TENSORRT_LLM, {"name": "qwen3-30b-a3b", "tp": 8, "ep": 2}),
    ],
    ids=str,
)
def test_the_command_of_a_plan_predicts_the_plan(launcher: Launcher, given: dict[str, Any]) -> None:
    engine = ServingEngine[launcher.name]
    drawn, request = serving(engine=engine, prompt_tokens=FixedLength(200), output_tokens=FixedLength(20), nodes=1, **given)
    request = replace(request, search=Search(launcher=launcher, engine=engine), objective=Objective.DEVICES)
    plan = predict(request, drawn)
    assert isinstance(plan.layout, Replicas)
    command = commands(export(plan, request, launcher.value))
    found = explained(ReadCommand(command, read_command(command), Question({}, ()), request))
    assert found.problems == () and found.plan is not None
    assert isinstance(found.plan.layout, Replicas)
    assert found.plan.predicted == plan.predicted
    own, read = plan.layout, found.plan.layout
    started = own.load.replicas if f"--{'data-parallel' if launcher is Launcher.VLLM else 'dp'}-size" in command else 1
    assert (read.stages[0].memory, read.load.max_num_seqs, read.load.max_num_batched_tokens) == (
        own.stages[0].memory,
        own.load.max_num_seqs,
        own.load.max_num_batched_tokens,
    )
    assert started == read.load.replicas == own.load.replicas


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("vllm serve Qwen/Qwen3-8B -tp 3", "32 attention heads do not divide by 3"),
        ("vllm serve Qwen/Qwen3-8B -tp 4 --enable-expert-parallel", "the model has no experts"),
        ("vllm serve Qwen/Qwen3-8B -tp 16", "starts on 16 devices, and there are 8"),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 128", "requests of 220 tokens are refused"),
        ("vllm serve Qwen/Qwen3-8B --max-num-seqs 4096 --max-num-batched-tokens 2048", "less than --max-num-seqs 4096"),
        (
            "python -m sglang.launch_server --model Qwen/Qwen3-8B --tp 4 --dp 3 --enable-dp-attention",
            "3 attention groups over 4",
        ),
        ("vllm serve Qwen/Qwen3-8B -pp 64", "the model has 36 layers"),
    ],
)
def test_commands_that_do_not_start(command: str, problem: str) -> None:
    found = explanation(command)
    assert found.verdict is Verdict.DOES_NOT_START
    assert any(problem in each for each in found.problems)
    assert found.plan is None


def test_a_command_that_does_not_fit() -> None:
    found = explanation("vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 1")
    assert found.verdict is Verdict.DOES_NOT_FIT
    assert found.reason is not None and "141.1 GB of weights" in found.reason.message


def test_less_memory_holds_less_of_the_cache() -> None:
    plans = [explanation(f"vllm serve Qwen/Qwen3-8B -tp 2 --gpu-memory-utilization {share}").plan for share in ("0.9", "0.5")]
    cache = [plan.layout.stages[0].memory.kv_cache_bytes for plan in plans if plan and isinstance(plan.layout, Replicas)]
    assert cache[0] - cache[1] == pytest.approx(0.4 * 84_930_000_000, rel=0.02)


def test_targets_decide_whether_a_command_does_what_is_asked() -> None:
    assert explanation("vllm serve Qwen/Qwen3-8B -tp 4", tpot_p95="40ms").verdict is Verdict.RUNS
    missed = explanation("vllm serve Qwen/Qwen3-8B -tp 4", tpot_p95="1ms")
    assert missed.verdict is Verdict.MISSES
    assert missed.plan is not None and missed.reason is not None


def test_the_highest_rate_is_that_of_the_targets() -> None:
    found = explanation("vllm serve Qwen/Qwen3-8B -tp 1 --max-num-seqs 4", objective="throughput", ttft_p95="1s", osl="4")
    assert found.plan is not None and found.most is not None
    assert found.plan.predicted is not None and found.most.predicted is not None
    assert found.plan.predicted.tokens_per_s == pytest.approx(4.0 * 4)
    assert found.most.predicted.tokens_per_s > 2 * found.plan.predicted.tokens_per_s


def test_a_better_plan_differs_by_its_flags() -> None:
    found = explanation("vllm serve Qwen/Qwen3-8B -tp 4 --max-num-seqs 64 --max-num-batched-tokens 2048 --port 80")
    quick = explanation("vllm serve Qwen/Qwen3-8B -tp 2 --max-num-seqs 256 --max-num-batched-tokens 2048").plan
    assert quick is not None

    def solve(request: PlanRequest) -> Plan:
        return quick

    better = with_better(found, solve).better
    assert better is not None and better.gain is not None and better.gain > 0.1
    assert Difference("-tp", "4", "2") in better.differences
    assert Difference("--max-num-seqs", "64", "256") in better.differences
    assert [each.given for each in better.differences if each.flag == "--dtype"] == [None]
    assert not [each for each in better.differences if each.flag in ("--max-num-batched-tokens", "--port")]
    assert with_better(replace(found, plan=quick), solve).better is None


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("ls -la", {}, "no launch command that is known"),
        ("vllm serve 'x", {}, "can't be read"),
        ("vllm serve", {}, "does not say its model"),
        ("vllm serve $MODEL", {}, "variable of a shell"),
        ("vllm serve Qwen/Qwen3-8B", {"launcher": "sglang"}, "another launcher"),
        ("vllm serve Qwen/Qwen3-8B", {"rate": None}, "--rate 4"),
        ("vllm serve Qwen/Qwen3-8B", {"gpus": None}, "--gpus 8xH100"),
        ("vllm serve " + "x" * 200_000, {}, "longer than 200,000 characters"),
    ],
)
def test_what_is_missing_or_strange_is_said(command: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        explanation(command, **options)
    assert words in str(refused.value)


def test_wrappers_and_what_follows_are_left_out() -> None:
    read = read_command(
        "cd /x && HF_HOME=/y CUDA_VISIBLE_DEVICES=0,1 numactl -N 0 /usr/bin/vllm serve a/b -tp 2 > log 2>&1 & wait"
    )
    assert (read.model, read.flags.tp) == ("a/b", 2)
    assert read.environment == {"HF_HOME": "/y", "CUDA_VISIBLE_DEVICES": "0,1"}


def test_formats_are_those_of_the_checkpoint() -> None:
    by_flag = asked_of("vllm serve Qwen/Qwen3-8B --quantization fp8", LINE, resolve)
    by_name = asked_of("vllm serve RedHatAI/Qwen3-8B-FP8 --kv-cache-dtype fp8", LINE, resolve)
    by_maker = asked_of("vllm serve openai/gpt-oss-20b", LINE, resolve)
    assert by_flag.request.workload.precision is by_name.request.workload.precision is DType.FP8
    assert by_maker.request.workload.precision is DType.FP4
    assert by_name.request.slo == Slo()
