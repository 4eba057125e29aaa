"""Token slices: closed forms of their schedules against event programs, and what a slice's attention takes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.kernels.operator_time import OperatorTime, operator_time
from meshwright.costmodels.model.dims import SliceShares, TokenSlice, slices_of
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, Tensor, forward_flops
from meshwright.costmodels.pipeline import (
    TOKEN_SLICED,
    Durations,
    PassKind,
    Program,
    Schedule,
    held_tokens,
    simulate,
    slices_waiting_ratio,
)
from meshwright.costmodels.pipeline.placement import build
from meshwright.costmodels.units import DType

PIPELINES = [(2, 1, 2), (3, 2, 5), (4, 3, 4), (4, 30, 8), (6, 40, 3), (8, 2, 8), (8, 50, 2)]
"""Ranks, micro-batches, slices; few micro-batches and many more than fill the pipeline."""


def random_shares(rng: np.random.Generator, n: int, spread: float) -> SliceShares:
    passes = np.concatenate([1 + spread * rng.uniform(-1, 1, n), 2 + 2 * spread * rng.uniform(-1, 1, n)])
    passes /= passes.sum()
    return SliceShares(tuple(map(float, passes[:n])), tuple(map(float, passes[n:])))


def makespan(program: Program, shares: SliceShares) -> float:
    """Of ranks that take 1 a micro-batch."""
    p = program.n_ranks
    passes = ((sum(shares.forward),) * p, (sum(shares.backward),) * p, (0.0,) * p, (0.0,) * (p - 1))
    return simulate(program, Durations(*passes, slices=shares)).makespan_s


@pytest.mark.parametrize(("p", "m", "n"), PIPELINES)
@pytest.mark.parametrize("schedule", sorted(TOKEN_SLICED))
def test_a_step_waits_as_its_program_does(schedule: Schedule, p: int, m: int, n: int) -> None:
    rng, program = np.random.default_rng([p, m, n]), build(schedule, p, m, n_slices=n)
    for spread in (0.0, 0.05, 0.4):
        shares = random_shares(rng, n, spread)
        ratio = slices_waiting_ratio(schedule, p, m, shares)
        assert m + (p - 1) * ratio == pytest.approx(makespan(program, shares), rel=1e-12)
        assert ratio >= shares.longest - 1e-12
        assert shares.longest >= 1 / n - 1e-12


@pytest.mark.parametrize(("p", "m", "n"), PIPELINES)
@pytest.mark.parametrize("schedule", sorted(TOKEN_SLICED))
def test_ranks_hold_the_tokens_that_their_programs_hold(schedule: Schedule, p: int, m: int, n: int) -> None:
    program = build(schedule, p, m, n_slices=n)
    lengths = tuple(int(tokens) for tokens in np.random.default_rng([p, m, n]).integers(1, 9, n))
    for rank, held in enumerate(held_tokens(schedule, p, m, lengths)):
        steps = [lengths[a.microbatch % n] * (1 if a.kind is PassKind.FORWARD else -1) for (a,) in program.orders[rank]]
        assert held == max(itertools.accumulate(steps))


@pytest.mark.parametrize("schedule", sorted(TOKEN_SLICED))
def test_slices_go_forward_in_order_and_backward_in_reverse(schedule: Schedule) -> None:
    for order in build(schedule, 3, 4, n_slices=5).orders:
        for kind, slices in ((PassKind.FORWARD, [0, 1, 2, 3, 4]), (PassKind.BACKWARD, [4, 3, 2, 1, 0])):
            numbers = [action.microbatch for (action,) in order if action.kind is kind]
            assert numbers == [5 * microbatch + k for microbatch in range(4) for k in slices]


TOKENS = ("batch", "seq")
Q, K, V, OUT = (
    Tensor(name, (*TOKENS, heads, "head_dim")) for name, heads in zip("qkvo", ("heads", "kv", "kv", "heads"), strict=True)
)
CORE = Operator("core", OperatorKind.ATTENTION, (Q, K, V), (OUT,), mask=AttentionMask.CAUSAL)
SIZES = {"batch": 2, "heads": 16, "kv": 4, "head_dim": 128}


def attention_s(tokens: int, place: TokenSlice) -> OperatorTime:
    device = node_type("dgx-h100").device
    return operator_time(CORE, {**SIZES, "seq": tokens}, device=device, dtype=DType.BF16, place=place)


def test_slices_attend_to_the_pairs_of_the_whole_sequence() -> None:
    lengths = (1024, 512, 2048, 512)
    parts = [
        forward_flops(CORE, {**SIZES, "seq": tokens}, earlier=place.earlier)
        for tokens, place in zip(lengths, slices_of(lengths), strict=True)
    ]
    assert sum(parts) == forward_flops(CORE, {**SIZES, "seq": sum(lengths)})


def test_later_slices_of_equal_length_take_longer() -> None:
    times = [attention_s(1024, place) for place in slices_of((1024,) * 8)]
    assert [time.forward_s for time in times] == sorted(time.forward_s for time in times)
    assert times[-1].forward_s > 3 * times[0].forward_s


def test_only_the_last_slice_adds_no_gradients_to_those_of_others() -> None:
    alone, followed = attention_s(1024, TokenSlice(1024, 0)), attention_s(1024, TokenSlice(1024, 1024))
    assert followed.forward_s == alone.forward_s
    moved = 3 * 2 * 2 * 2 * 2048 * SIZES["kv"] * 128
    least_s = moved / node_type("dgx-h100").device.memory_bytes_per_s
    assert least_s < followed.backward_s - alone.backward_s < 3 * least_s
