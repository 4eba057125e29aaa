"""Bytes of training state for each parameter."""

from __future__ import annotations

import pytest

from meshwright.costmodels.memory.training_state import (
    Optimizer,
    deepspeed_bf16_bytes,
    deepspeed_copied_gradient_bytes,
    deepspeed_zero_bytes,
    deferred_head_bytes,
    optimizer_traffic_bytes,
    state_bytes_per_parameter,
)
from meshwright.costmodels.units import DType


def total(optimizer: Optimizer, *, zero_stage: int = 0, shards: int = 1, gradient_dtype: DType = DType.BF16) -> float:
    return state_bytes_per_parameter(
        precision=DType.BF16, gradient_dtype=gradient_dtype, optimizer=optimizer, zero_stage=zero_stage, shards=shards
    ).total


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (Optimizer.ADAMW, 16.0),
        (Optimizer.SGD_MOMENTUM, 12.0),
        (Optimizer.MUON, 12.0),
        (Optimizer.ADAMW_8BIT, 10.0),
        (Optimizer.ADAMW_BF16, 12.0),
    ],
)
def test_bytes_of_mixed_precision(optimizer: Optimizer, expected: float) -> None:
    assert total(optimizer) == expected
    assert total(optimizer, gradient_dtype=DType.FP32) == expected + 2


def test_zero_divides_one_kind_after_the_other() -> None:
    stages = [total(Optimizer.ADAMW, zero_stage=stage, shards=4) for stage in range(4)]
    assert stages == [16.0, 4 + 12 / 4, 2 + 2 / 4 + 12 / 4, 16 / 4]


def test_eight_bit_moments_are_read_and_written_in_bytes() -> None:
    plain, small = (
        optimizer_traffic_bytes(precision=DType.BF16, gradient_dtype=DType.FP32, optimizer=optimizer)
        for optimizer in (Optimizer.ADAMW, Optimizer.ADAMW_8BIT)
    )
    assert plain - small == 2 * (8 - 2)


def test_deepspeed_holds_fp32_gradients_of_a_shard_and_two_buckets() -> None:
    few = deepspeed_zero_bytes(1e8, gradient_dtype=DType.FP16, shards=4)
    assert few == 1e8 * 4 / 4 + 2 * 1e8 * 2
    many = deepspeed_zero_bytes(2e9, gradient_dtype=DType.FP16, shards=4)
    assert many == 2e9 * 4 / 4 + 2 * 5e8 * 2


def test_deepspeeds_optimizer_for_bf16_keeps_16_bit_gradients_and_one_fp32_bucket() -> None:
    assert deepspeed_bf16_bytes(1e8) == 1e8 * 2 + 1e8 * 4
    assert deepspeed_bf16_bytes(2e9) == 2e9 * 2 + 5e8 * 4


def test_deepspeed_copies_its_largest_gradient_in_fp64_as_far_as_it_lies_in_its_shard() -> None:
    assert deepspeed_copied_gradient_bytes(3e8, own_elements=5e8) == 3e8 * 8
    assert deepspeed_copied_gradient_bytes(3e8, own_elements=1e8) == 1e8 * 8


def test_a_deferred_head_keeps_every_micro_batch_but_the_one_that_runs() -> None:
    held = [deferred_head_bytes(tokens=512, hidden=64, vocab=1000, n_microbatches=m, dtype=DType.BF16) for m in (1, 2, 3, 8)]
    each = 512 * (64 + 1000) * 2
    assert held == [0, each, 2 * each, 7 * each]
