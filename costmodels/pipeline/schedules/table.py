"""The table of all schedules, complete from the moment it is imported."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwright.costmodels.pipeline.program import Schedule
from meshwright.costmodels.pipeline.schedules import (
    dualpipe,
    dualpipe_v,
    eager_one_f_one_b,
    gpipe,
    interleaved,
    one_f_one_b,
    seq_1f1b,
    terapipe,
    v_half,
    v_min,
    zb_h1,
    zb_h2,
    zb_v,
)
from meshwright.costmodels.pipeline.traits import PipelineRuntime, ScheduleTraits, TokenSlices

_FILES = (
    gpipe,
    one_f_one_b,
    eager_one_f_one_b,
    interleaved,
    zb_h1,
    zb_h2,
    zb_v,
    v_half,
    v_min,
    dualpipe,
    dualpipe_v,
    terapipe,
    seq_1f1b,
)

TRAITS: Mapping[Schedule, ScheduleTraits] = MappingProxyType({file.TRAITS.schedule: file.TRAITS for file in _FILES})
"""The traits of each schedule."""

assert len(TRAITS) == len(_FILES), "no two files have the same schedule"
assert TRAITS.keys() == set(Schedule), "every schedule has a file"

TOKEN_SLICED = frozenset(schedule for schedule, traits in TRAITS.items() if isinstance(traits.sequences, TokenSlices))
"""Schedules that cut each micro-batch along its sequence into token slices."""


def names_in(runtime: PipelineRuntime) -> Mapping[Schedule, str]:
    """Return the schedules that a runtime runs, each with its name there."""
    return MappingProxyType(
        {schedule: name for schedule, traits in TRAITS.items() for known_to, name in traits.run_by if known_to is runtime}
    )
