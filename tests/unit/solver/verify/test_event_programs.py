"""The checker's readings of event programs agree with the traits that the search uses."""

from __future__ import annotations

import pytest

from meshwright.costmodels.pipeline import TOKEN_SLICED, TRAITS, Backward, Schedule, SendTiming, n_copies
from meshwright.solver.training.space.schedules import Pipelining
from meshwright.solver.verify.training.schedule import schedule_reading


@pytest.mark.parametrize("schedule", list(Schedule))
def test_the_checker_reads_what_the_search_is_told(schedule: Schedule) -> None:
    read, traits = schedule_reading(schedule), TRAITS[schedule]
    assert read.copies == n_copies(schedule)
    assert read.cuts_sequences == (schedule in TOKEN_SLICED)
    assert read.splits_backward == (traits.backward is Backward.SPLIT)
    assert read.takes_on_early == (traits.sends is SendTiming.UNDER_OTHER_MICROBATCHES)
    assert read.pairs_passes == traits.pairs_passes
    modes_by_stage = read.one_part_a_rank and not read.splits_backward and not read.cuts_sequences
    assert modes_by_stage == (Pipelining(schedule, len(traits.paths(1, 2)[0])).modes_by_stage)


def test_schedules_that_save_memory_are_those_of_controllable_memory() -> None:
    assert {s for s in Schedule if schedule_reading(s).holds_less} == {Schedule.V_HALF, Schedule.V_MIN}


def test_schedules_that_hold_all_micro_batches_fill_and_drain() -> None:
    assert {s for s in Schedule if schedule_reading(s).holds_all} == {Schedule.GPIPE, Schedule.TERAPIPE}
