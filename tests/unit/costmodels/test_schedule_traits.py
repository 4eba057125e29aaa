"""Traits of schedules agree with their event programs."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright.costmodels.pipeline.schedules
from meshwright.costmodels.pipeline import (
    TRAITS,
    Backward,
    ChunkCount,
    HeldMicrobatches,
    PassKind,
    Program,
    Schedule,
    SendTiming,
    WholeSequences,
    n_copies,
    positions_of_ranks,
)
from meshwright.costmodels.pipeline.placement import build

P, M = 4, 16
SCHEDULES = list(Schedule)


def kinds(program: Program) -> set[PassKind]:
    return {action.kind for order in program.orders for slot in order for action in slot}


def forwards_first(program: Program, rank: int) -> int:
    return next(i for i, slot in enumerate(program.orders[rank]) if slot[0].kind is not PassKind.FORWARD)


def test_every_file_is_in_the_table() -> None:
    folder = Path(meshwright.costmodels.pipeline.schedules.__path__[0])
    files = [path for path in folder.glob("*.py") if path.name not in ("__init__.py", "table.py")]
    assert len(files) == len(TRAITS) == len(SCHEDULES)
    assert len({traits.title for traits in TRAITS.values()}) == len(TRAITS)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_backward_is_split_where_the_program_splits_it(schedule: Schedule) -> None:
    assert (TRAITS[schedule].backward is Backward.SPLIT) == (PassKind.INPUT in kinds(build(schedule, P, M)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_longer_step_holds_more_only_where_the_traits_say_so(schedule: Schedule) -> None:
    sequences = TRAITS[schedule].sequences
    if isinstance(sequences, WholeSequences):
        short, long = (build(schedule, P, m).peak_in_flight(0) for m in (M, 2 * M))
        assert (long > short) == (sequences.held is HeldMicrobatches.EVERY)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ranks_run_passes_of_the_parts_that_paths_give_them(schedule: Schedule) -> None:
    program = build(schedule, P, M)
    run = tuple(tuple(sorted({a.position for slot in order for a in slot})) for order in program.orders)
    assert run == positions_of_ranks(schedule, P, 2)
    assert n_copies(schedule) == sum(0 in of_rank for of_rank in run)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_sends_are_hidden_under_passes_that_are_there(schedule: Schedule) -> None:
    """Under those of other chunks, or of micro-batches taken on one by one for the way there and the way back."""
    traits, program = TRAITS[schedule], build(schedule, P, M)
    first = [forwards_first(program, rank) for rank in range(P)]
    match traits.sends:
        case SendTiming.UNDER_OTHER_CHUNKS:
            assert program.chunks_per_microbatch > 1
        case SendTiming.UNDER_OTHER_MICROBATCHES:
            assert [first[rank] - first[rank + 1] for rank in range(P - 1)] == [2] * (P - 1)
        case SendTiming.BETWEEN_PASSES:
            pass


@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if TRAITS[s].chunk_count is ChunkCount.ANY])
@pytest.mark.parametrize("chunks", [2, 3, 5])
def test_any_number_of_chunks_holds_a_group_in_each_before_the_first_backward(schedule: Schedule, chunks: int) -> None:
    program = build(schedule, P, M, n_chunks=chunks)
    assert program.chunks_per_microbatch == chunks
    held = [slot[0].position for slot in program.orders[0][: forwards_first(program, 0)]]
    assert all(held.count(position) >= P for position in positions_of_ranks(schedule, P, chunks)[0])


@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if TRAITS[s].no_better_than is not None])
def test_what_is_left_out_holds_no_less_and_waits_no_less(schedule: Schedule) -> None:
    worse, better = TRAITS[schedule], TRAITS[TRAITS[schedule].no_better_than or schedule]
    assert worse.bubble_s == better.bubble_s
    slower, kept = build(worse.schedule, P, M), build(better.schedule, P, M)
    assert all(slower.peak_in_flight(rank) >= kept.peak_in_flight(rank) for rank in range(P))
