"""The law of parts (`tests/laws/parts.py`) of runs with weights of four bits, and what the checker says of it."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from meshwright.app.base.solving import predict_here, solve_here
from meshwright.app.requests.one_line import request_of_line
from meshwright.app.requests.options import OneLine
from meshwright.app.service.explaining.explain import asked_of, explained
from meshwright.app.service.explaining.explanation import Verdict
from meshwright.solver.answer.layouts import Uniform
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from meshwright.solver.verify.violation import number_violations
from tests.laws.parts import CORRECTIONS, require_parts
from tests.support.flat_plans import flat, with_fields
from tests.unit.app.explaining.resolving import resolve

SEVENTY = (
    "accelerate launch --num_processes 8 --use_fsdp --fsdp_sharding_strategy FULL_SHARD train.py --model_name_or_path "
    "meta-llama/Meta-Llama-3-70B --per_device_train_batch_size 1 --gradient_checkpointing --bf16 --output_dir out --use_peft "
)


def test_packed_weights_under_fsdp_are_shards() -> None:
    line = OneLine("llama-3.1-70b", gpus="8xH100", seq="2048")
    packed, plain = (explained(asked_of(f"{SEVENTY}{more}", line, resolve)) for more in ("--load_in_4bit", ""))
    assert packed.plan is not None and plain.plan is not None
    require_parts(packed.plan)
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
            require_parts(each)
    assert not check(plan, request)


def test_packed_weights_fit_where_plain_ones_do_not() -> None:
    packed, plain = (
        solve_here(resolve(request_of_line(replace(LINES[2], qlora=qlora, lora=lora))))
        for qlora, lora in (("16", None), (None, "16"))
    )
    assert packed.feasible
    assert not plain.feasible
