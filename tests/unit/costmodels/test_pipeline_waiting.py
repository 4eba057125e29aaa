"""Waits and held passes of schedules, against their event programs at other sizes than the ones they are made from."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.pipeline import (
    Durations,
    PassKind,
    PassShares,
    Schedule,
    chunks_per_rank,
    fills,
    held_passes,
    paired_share,
    positions_of_ranks,
    simulate,
    waiting_ratio,
)
from meshwright.costmodels.pipeline.closed_forms import makespan_s
from meshwright.costmodels.pipeline.placement import build

SHARES = [PassShares(1 / 3, 1 / 3, 1 / 3), PassShares(1 / 3, 0.4, 4 / 15), PassShares(0.25, 0.55, 0.2)]
"""Without attention; with a fifth of attention; the same with full recomputation."""

CASES = [
    (schedule, p, m, v)
    for schedule, p, m, v in itertools.product(Schedule, (2, 3, 4, 6), (8, 12, 30, 48), (1, 2, 3))
    if fills(schedule, p, m, v) and v == (chunks_per_rank(schedule, v) if schedule is Schedule.INTERLEAVED else 1)
]


def wait(schedule: Schedule, p: int, m: int, v: int, shares: PassShares) -> float:
    """Return the time of the program's step beyond m micro-batches, in micro-batches' time on a rank."""
    program = build(schedule, p, m, n_chunks=max(2, v))
    parts = chunks_per_rank(schedule, max(2, v))
    durations = Durations.equal(
        program.n_positions,
        forward_s=shares.forward / parts,
        input_s=shares.input / parts,
        weight_s=shares.weight / parts,
    )
    return simulate(program, durations).makespan_s - m


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(("schedule", "p", "m", "v"), CASES)
def test_waits_are_those_of_the_program(schedule: Schedule, p: int, m: int, v: int) -> None:
    for shares in SHARES:
        ratio = waiting_ratio(schedule, p, m, shares, n_chunks=v)
        assert 0 <= ratio <= m
        assert (m + ratio * (p - 1)) == pytest.approx(m + wait(schedule, p, m, v, shares), rel=1e-3)


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(("schedule", "p", "m"), sorted({(schedule, p, m) for schedule, p, m, _ in CASES}))
def test_makespans_are_those_of_the_timeline_to_the_bit(schedule: Schedule, p: int, m: int) -> None:
    program = build(schedule, p, m)
    for shares in SHARES:
        durations = Durations.equal(program.n_positions, forward_s=shares.forward, input_s=shares.input, weight_s=shares.weight)
        found = makespan_s(schedule, p, m, forward_s=shares.forward, input_s=shares.input, weight_s=shares.weight)
        assert found == simulate(program, durations).makespan_s


@pytest.mark.parametrize(("schedule", "p", "m", "v"), CASES)
def test_a_rank_holds_what_its_program_holds_whatever_its_parts_take(schedule: Schedule, p: int, m: int, v: int) -> None:
    program = build(schedule, p, m, n_chunks=max(2, v))
    rng = np.random.default_rng(p * m)
    held = held_passes(schedule, p, m, v)
    for rank, positions in enumerate(positions_of_ranks(schedule, p, v)):
        size = dict(zip(positions, rng.uniform(0.1, 2.0, len(positions)), strict=True))
        used = peak = 0.0
        for slot in program.orders[rank]:
            used += sum(size[action.position] for action in slot if action.kind is PassKind.FORWARD)
            peak = max(peak, used)
            used -= sum(size[action.position] for action in slot if action.kind in (PassKind.BACKWARD, PassKind.WEIGHT))
        assert max(held[rank] @ list(size.values())) == pytest.approx(peak)


def test_published_ratios() -> None:
    """Zero Bubble Table 1 with F = B = W: ZB-H1 waits a third of 1F1B; interleaving in v chunks a v-th (Megatron-LM SC'21)."""
    equal = SHARES[0]
    assert waiting_ratio(Schedule.ONE_F_ONE_B, 8, 32, equal) == 1
    assert waiting_ratio(Schedule.INTERLEAVED, 8, 32, equal, n_chunks=4) == 0.25
    assert waiting_ratio(Schedule.ZB_H1, 8, 32, equal) == pytest.approx(1 / 3)
    assert waiting_ratio(Schedule.ZB_V, 8, 32, equal) == pytest.approx(1 / 6)


def test_pipelines_that_a_schedule_cannot_fill_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="can't fill"):
        waiting_ratio(Schedule.INTERLEAVED, 4, 6, SHARES[0], n_chunks=2)
    with pytest.raises(InvalidInputError, match="three parts of 1"):
        PassShares(0.5, 0.5, 0.5)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 20), (6, 12), (8, 40)])
@pytest.mark.parametrize("schedule", [Schedule.DUALPIPE, Schedule.DUALPIPE_V])
def test_pairs_of_passes_are_those_of_the_program(schedule: Schedule, p: int, m: int) -> None:
    program = build(schedule, p, m)
    forwards = sum(action.kind is PassKind.FORWARD for slot in program.orders[0] for action in slot)
    pairs = min(sum(len(slot) == 2 for slot in order) for order in program.orders)
    assert paired_share(schedule, p, m) == pytest.approx(pairs / forwards)


def test_one_stage_pairs_all_micro_batches_but_the_first() -> None:
    assert paired_share(Schedule.ONE_F_ONE_B, 1, 1) == 0.0
    assert paired_share(Schedule.ONE_F_ONE_B, 1, 8) == pytest.approx(7 / 8)
