"""The law of parts: no part of memory or of time of an answer is below zero, and parts add up to the whole."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.app.base.solving import predict_here, solve_here
from meshwright.app.launching.parts.launch_files import NO_FILES
from meshwright.app.requests.one_line import request_of_line
from meshwright.app.requests.options import OneLine
from meshwright.app.service.explaining.explain import asked_of, explained
from meshwright.app.service.explaining.explanation import Verdict
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.layouts import Uniform
from meshwright.solver.answer.plan import Plan
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from meshwright.solver.verify.violation import number_violations
from tests.support.flat_plans import flat, with_fields
from tests.unit.app.explaining.resolving import resolve

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


def _require_parts(plan: Plan) -> None:
    assert plan.predicted is not None
    assert not list(number_violations(plan))
    stages = flat(plan).stages
    for stage in stages:
        parts = {each.name: getattr(stage.memory, each.name) for each in dataclasses.fields(stage.memory)}
        assert all(value >= 0.0 for name, value in parts.items() if name not in CORRECTIONS), parts
        assert sum(value for name, value in parts.items() if name not in NO_PARTS) == pytest.approx(stage.memory.total_bytes)
    assert plan.predicted.peak_memory_bytes == pytest.approx(max(stage.memory.total_bytes for stage in stages))
    breakdown = flat(plan).breakdown
    assert breakdown is not None
    times_s = dataclasses.astuple(breakdown)
    step_s = plan.predicted.step_time_s
    assert step_s is not None
    assert all(each >= -1e-9 * step_s for each in times_s)
    assert sum(times_s) == pytest.approx(step_s)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(list(BACKENDS)),
    st.sampled_from(FORMATS),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([2, 8, 16]),
    st.sampled_from(["llama-3.1-8b", "llama-3.1-70b", "qwen3-8b"]),
)
def test_parts_of_an_explained_run_are_positive_and_add_up(
    backend: str, adapter: str, stage: int, reshard: bool, microbatch: int, world: int, model: str
) -> None:
    options = BACKENDS[backend].format(stage=stage, reshard=str(reshard).lower())
    command = (
        f"accelerate launch --num_processes {world} {options} train.py --model_name_or_path a/b --bf16 "
        f"--gradient_checkpointing --per_device_train_batch_size {microbatch} {adapter}"
    )
    try:
        found = explained(asked_of(command, OneLine(model, gpus="2x8xH100", seq="1024"), resolve, NO_FILES))
    except InvalidInputError:
        # Refused with a reason.
        return
    if found.verdict is not Verdict.DOES_NOT_START:
        assert found.plan is not None
        _require_parts(found.plan)


SEVENTY = (
    "accelerate launch --num_processes 8 --use_fsdp --fsdp_sharding_strategy FULL_SHARD train.py --model_name_or_path "
    "meta-llama/Meta-Llama-3-70B --per_device_train_batch_size 1 --gradient_checkpointing --bf16 --output_dir out --use_peft "
)


def test_packed_weights_under_fsdp_are_shards() -> None:
    line = OneLine("llama-3.1-70b", gpus="8xH100", seq="2048")
    packed, plain = (explained(asked_of(f"{SEVENTY}{more}", line, resolve)) for more in ("--load_in_4bit", ""))
    assert packed.plan is not None and plain.plan is not None
    _require_parts(packed.plan)
    (with_four_bits,), (with_sixteen,) = flat(packed.plan).stages, flat(plain.plan).stages
    assert 0.2 < with_four_bits.memory.weights_bytes / with_sixteen.memory.weights_bytes < 0.35
    assert any("bnb_4bit_quant_storage" in note for note in packed.notes)


def test_weights_of_eight_bits_are_no_shards() -> None:
    line = OneLine("llama-3.1-70b", gpus="8xH100", seq="2048")
    found = explained(asked_of(f"{SEVENTY}--load_in_8bit", line, resolve))
    assert found.verdict is Verdict.DOES_NOT_START
    assert "int8" in found.problems[0]


def test_the_checker_refuses_a_part_below_zero() -> None:
    found = explained(asked_of(SEVENTY, OneLine("llama-3.1-8b", gpus="8xH100", seq="2048"), resolve))
    assert found.plan is not None and isinstance(found.plan.layout, Uniform)
    (stage,) = flat(found.plan).stages
    for part in dataclasses.fields(stage.memory):
        if part.name not in CORRECTIONS:
            changed = with_fields(found.plan, stages=(replace(stage, memory=replace(stage.memory, **{part.name: -1.0})),))
            assert Rule.NUMBERS in {violation.rule for violation in number_violations(changed)}, part.name


LINES = (
    OneLine("llama-3.1-8b", gpus="8xH100", batch="64", seq="4096"),
    OneLine("llama-3.1-8b", gpus="8xH100", batch="64", seq="4096", lora="16"),
    OneLine("qwen3-32b", gpus="8xRTX4090", batch="64", seq="4096", qlora="16"),
    OneLine("llama-3.1-70b", gpus="8xH100", batch="32", seq="4096", qlora="16"),
    OneLine("llama-3.1-8b", gpus="2x8xH100", isl="1000", osl="100", rate="2"),
)


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.model} {line.gpus} {line.qlora or line.lora or ''}")
def test_parts_of_a_plan_and_of_its_prediction_are_positive_and_add_up(line: OneLine) -> None:
    request = resolve(request_of_line(line))
    plan = solve_here(request)
    assert plan.feasible
    for each in (plan, predict_here(request, plan)):
        assert not list(number_violations(each))
        if request.workload.kind == "training":
            _require_parts(each)
    assert not check(plan, request)


def test_packed_weights_fit_where_plain_ones_do_not() -> None:
    packed, plain = (
        solve_here(resolve(request_of_line(replace(LINES[2], qlora=qlora, lora=lora))))
        for qlora, lora in (("16", None), (None, "16"))
    )
    assert packed.feasible
    assert not plain.feasible
