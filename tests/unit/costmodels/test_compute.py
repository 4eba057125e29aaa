"""Kernel times: laws, units, arrays against numbers, and what is said where nothing was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodels.calibration.kernels import KernelKind, VectorKernel
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.hardware import device, devices
from meshwright.costmodels.kernels.compute import (
    attention_backward_s,
    attention_forward_s,
    decode_attention_s,
    kernel_error,
    launch_s,
    matmul_s,
    memory_bound_s,
)
from meshwright.costmodels.units import DType

A100, H100 = device("a100"), device("h100")
ALL = [pytest.param(board, id=board.name) for board in devices()]
SIDES = st.integers(0, 10).map(lambda power: 32 * 2**power)
LARGE_SIDES = st.integers(0, 7).map(lambda power: 256 * 2**power)


def half_precision(board):
    return DType.BF16 if DType.BF16 in board.peak_flops else DType.FP16


def forward(board, dtype, *, tokens, batch=1, heads=32, head_dim=128, **more):
    flops = 4 * head_dim * heads * batch * tokens * (tokens + 1) / 2
    shape = {"q_tokens": tokens, "kv_tokens": tokens, "heads": heads, "head_dim": head_dim, "batch": batch}
    return attention_forward_s(board, dtype, flops=flops, **shape, **more)


@pytest.mark.parametrize("board", ALL)
def test_a_large_matmul_runs_near_peak_and_never_above_it(board):
    dtype = half_precision(board)
    seconds = matmul_s(board, dtype, 8192, 8192, 8192)
    share = 2 * 8192**3 / seconds / board.peak(dtype)
    assert 0.25 < share < 1.0


@pytest.mark.parametrize("board", ALL)
def test_a_matrix_vector_product_is_bound_by_memory(board):
    dtype = half_precision(board)
    seconds = matmul_s(board, dtype, 1, 16384, 16384)
    floor = 16384 * 16384 * dtype.size_bytes / board.memory_bytes_per_s
    assert floor < seconds < 3 * floor


@pytest.mark.parametrize("board", ALL)
def test_every_board_answers_for_attention_and_memory(board):
    dtype = half_precision(board)
    seconds = forward(board, dtype, tokens=4096)
    flops = 4 * 128 * 32 * 4096 * 4097 / 2
    assert 0.1 < flops / seconds / board.peak(dtype) < 1.0
    step = decode_attention_s(board, dtype, batch=64, kv_tokens=8192, kv_heads=8, heads=64, head_dim=128)
    assert 64 * 8192 * 8 * 128 * 2 * dtype.size_bytes / step < 1.1 * board.memory_bytes_per_s
    assert memory_bound_s(board, 1e9) > 1e9 / board.memory_bytes_per_s
    assert launch_s(board) > 0


@settings(deadline=None)
@given(m=SIDES, n=SIDES, k=SIDES)
def test_a_faster_board_is_never_slower(m, n, k):
    faster = replace(
        H100,
        peak_flops={dtype: 1.3 * peak for dtype, peak in H100.peak_flops.items()},
        memory_bytes_per_s=1.3 * H100.memory_bytes_per_s,
    )
    assert matmul_s(faster, DType.BF16, m, n, k) <= matmul_s(H100, DType.BF16, m, n, k)


@settings(deadline=None)
@given(m=LARGE_SIDES, n=LARGE_SIDES, k=LARGE_SIDES)
def test_eight_times_the_work_takes_longer(m, n, k):
    assert matmul_s(A100, DType.BF16, 2 * m, 2 * n, 2 * k) > matmul_s(A100, DType.BF16, m, n, k)


@settings(deadline=None)
@given(st.lists(st.tuples(SIDES, SIDES, SIDES), min_size=1, max_size=5))
def test_arrays_give_what_numbers_give(sizes):
    m, n, k = np.array(sizes).T
    expected = [matmul_s(H100, DType.FP8, *size) for size in sizes]
    assert matmul_s(H100, DType.FP8, m, n, k).tolist() == expected


def test_sizes_broadcast():
    seconds = matmul_s(H100, DType.BF16, np.array([[1024], [4096]]), np.array([512, 2048, 8192]), 4096)
    assert seconds.shape == (2, 3)
    assert seconds[1, 2] == matmul_s(H100, DType.BF16, 4096, 8192, 4096)


def test_a_number_in_gives_a_float_out():
    assert isinstance(matmul_s(H100, DType.BF16, 128, 128, np.int64(128)), float)
    assert isinstance(forward(H100, DType.BF16, tokens=128), float)
    assert isinstance(memory_bound_s(H100, 1e6), float)


def test_a_batch_costs_less_than_its_products_one_by_one_and_more_than_one():
    one = matmul_s(H100, DType.BF16, 512, 512, 512)
    assert one < matmul_s(H100, DType.BF16, 512, 512, 512, batch=16) < 16 * one


def test_backward_attention_does_two_and_a_half_times_the_work_at_a_lower_rate():
    shape = {"flops": 1e12, "q_tokens": 4096, "kv_tokens": 4096, "heads": 32, "head_dim": 128}
    ratio = attention_backward_s(H100, DType.BF16, **shape) / attention_forward_s(H100, DType.BF16, **shape)
    assert 2.5 < ratio < 3.5


def test_masked_pairs_cost_nothing():
    shape = {"q_tokens": 8192, "kv_tokens": 8192, "heads": 32, "head_dim": 128}
    full = attention_forward_s(H100, DType.BF16, flops=4 * 128 * 32 * 8192**2, **shape)
    causal = attention_forward_s(H100, DType.BF16, flops=2 * 128 * 32 * 8192**2, **shape)
    assert causal < 0.6 * full


def test_grouped_queries_read_a_smaller_cache():
    shape = {"batch": 128, "kv_tokens": 8192, "heads": 64, "head_dim": 128}
    many = decode_attention_s(H100, DType.BF16, kv_heads=64, **shape)
    assert decode_attention_s(H100, DType.BF16, kv_heads=8, **shape) < many / 3


def test_a_narrower_cache_is_read_faster():
    shape = {"batch": 128, "kv_tokens": 16384, "heads": 64, "kv_heads": 8, "head_dim": 128}
    narrow = decode_attention_s(H100, DType.BF16, cache_dtype=DType.FP8, **shape)
    assert narrow < 0.75 * decode_attention_s(H100, DType.BF16, **shape)


def test_attention_arrays_give_what_numbers_give():
    tokens = np.array([512, 2048, 8192])
    assert forward(H100, DType.BF16, tokens=tokens).tolist() == [forward(H100, DType.BF16, tokens=int(t)) for t in tokens]
    shape = {"batch": 16, "heads": 32, "kv_heads": 8, "head_dim": 128}
    steps = decode_attention_s(H100, DType.BF16, kv_tokens=tokens, **shape)
    assert steps.tolist() == [decode_attention_s(H100, DType.BF16, kv_tokens=int(t), **shape) for t in tokens]


def test_moving_nothing_takes_no_time_and_moving_anything_a_launch():
    assert memory_bound_s(H100, 0) == 0.0
    assert memory_bound_s(H100, np.array([0.0, 1.0]))[0] == 0.0
    assert memory_bound_s(H100, 1) > 1e-7


@pytest.mark.parametrize("kernel", VectorKernel)
def test_moving_more_takes_longer(kernel):
    times = memory_bound_s(H100, np.array([1e3, 1e6, 1e9]), kernel=kernel)
    assert (np.diff(times) > 0).all()


def test_a_measured_estimate_states_its_error_on_rows_held_out():
    error = kernel_error(H100, DType.BF16, KernelKind.GEMM)
    assert error.median <= 0.03
    assert error.p95 <= 0.12
    assert "held-out" in error.basis


@pytest.mark.parametrize(
    ("kind", "median", "p95"), [(KernelKind.PREFILL_ATTENTION, 0.07, 0.25), (KernelKind.DECODE_ATTENTION, 0.12, 0.45)]
)
@pytest.mark.parametrize("board", ["a100", "h100", "h200", "b200"])
def test_attention_errors_are_within_their_targets(board, kind, median, p95):
    error = kernel_error(device(board), DType.BF16, kind)
    assert error.median <= median
    assert error.p95 <= p95


def test_what_was_not_measured_states_a_larger_error():
    measured = kernel_error(H100, DType.BF16, KernelKind.GEMM)
    assert kernel_error(device("mi300x"), DType.BF16, KernelKind.GEMM).median > measured.median
    assert kernel_error(H100, DType.TF32, KernelKind.GEMM).median > measured.median
    assert kernel_error(H100, DType.FP16, KernelKind.GEMM) == measured
    assert "backward" in kernel_error(H100, DType.BF16, KernelKind.ATTENTION_BACKWARD).basis


def test_a_format_the_board_lacks_is_refused():
    with pytest.raises(ClusterError, match="no matrix unit for fp8"):
        matmul_s(A100, DType.FP8, 128, 128, 128)


def test_an_unknown_calibration_says_which_exist():
    with pytest.raises(ClusterError, match="h100_sxm"):
        matmul_s(replace(H100, calibration="h1000"), DType.BF16, 128, 128, 128)


@pytest.mark.parametrize(
    ("name", "dtype", "m", "n", "k", "measured_s"),
    [
        # GEMM tables of aiconfigurator-core 0.12.0 (Apache-2.0).
        ("h100", DType.BF16, 4096, 4096, 4096, 174.29e-6),
        ("h100", DType.BF16, 8192, 8192, 8192, 1404.8e-6),
        ("h100", DType.BF16, 16, 8192, 8192, 49.83e-6),
        ("h100", DType.BF16, 1024, 1024, 16384, 54.90e-6),
        ("a100", DType.BF16, 8192, 8192, 8192, 4280.4e-6),
        ("a100", DType.BF16, 16, 8192, 8192, 99.80e-6),
        ("a100", DType.BF16, 129, 6144, 2048, 35.61e-6),
        ("b200", DType.FP8, 4096, 4096, 4096, 81.01e-6),
        ("b200", DType.FP4, 8192, 8192, 8192, 284.56e-6),
    ],
)
def test_measured_matmuls_are_met(name, dtype, m, n, k, measured_s):
    assert matmul_s(device(name), dtype, m, n, k) == pytest.approx(measured_s, rel=0.12)


@pytest.mark.parametrize(
    ("name", "tokens", "measured_s"), [("h100", 2048, 124.5e-6), ("h100", 8192, 1084.5e-6), ("a100", 8192, 2905.8e-6)]
)
def test_measured_prefills_are_met(name, tokens, measured_s):
    # Context-attention tables of aiconfigurator-core 0.12.0: 32 heads of 128, 8 key/value heads.
    assert forward(device(name), DType.BF16, tokens=tokens, kv_heads=8) == pytest.approx(measured_s, rel=0.1)


@pytest.mark.parametrize(
    ("name", "batch", "measured_s"),
    [("h100", 1, 15.18e-6), ("h100", 64, 365.3e-6), ("a100", 1, 38.2e-6), ("a100", 64, 866.1e-6)],
)
def test_measured_decode_steps_are_met(name, batch, measured_s):
    # Generation-attention tables of aiconfigurator-core 0.12.0: 4095 cached tokens and the new one.
    shape = {"batch": batch, "kv_tokens": 4096, "kv_heads": 8, "heads": 32, "head_dim": 128}
    assert decode_attention_s(device(name), DType.BF16, **shape) == pytest.approx(measured_s, rel=0.15)


def test_a_batch_does_all_its_work():
    flops = 64 * 2 * 1024 * 1024 * 4096
    assert matmul_s(H100, DType.BF16, 1024, 1024, 4096, batch=64) > flops / H100.peak(DType.BF16)
