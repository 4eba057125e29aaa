"""A timeline as a trace that https://ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format" of Chromium, complete events (``ph`` X) with times in microseconds. One process a stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.app.base.figures import ranks_of
from meshwright.app.base.quoting import json_text, readable
from meshwright.app.pictures.step_timeline import MOST_PASSES, StageTimeline, StepTimeline, TimelineSlice, step_timeline
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest

_US_PER_S = 1e6
_DIGITS = 3
"""Digits of a microsecond: traces count nanoseconds."""


def trace_text(answered: AnsweredRequest) -> str:
    """Return the trace of a training plan's step; raises InvalidInputError where there is no step."""
    timeline = step_timeline(answered)
    if timeline is None:
        raise no_timeline(answered)
    return json_text(trace_document(timeline, title=answered.plan.model), indent=None) + "\n"


def no_timeline(answered: AnsweredRequest) -> InvalidInputError:
    """Return the error of a plan that has no step to draw."""
    given = f"a {answered.plan.kind} plan" if answered.plan.feasible else "an answer without a plan"
    allowed = f"a training plan that fits, of at most {MOST_PASSES:,} passes"
    return InvalidInputError("there is no pipeline timeline", given=given, allowed=allowed)


def trace_document(timeline: StepTimeline, *, title: str) -> dict[str, Any]:
    """Return the trace of a timeline, with the figures that the plan predicts beside it."""
    events = [event for pid, stage in enumerate(timeline.stages) for event in _events(pid, stage)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "model": readable(title),
            "predicted_step_time_us": round(timeline.step_time_s * _US_PER_S, _DIGITS),
            "bubble_us": round(timeline.bubble_s * _US_PER_S, _DIGITS),
        }
        | ({"shown": timeline.left_out} if timeline.left_out else {}),
    }


def stage_name(stage: StageTimeline) -> str:
    """Return the name of a stage: its number, its ranks in the first replica, and its node group where each has its own."""
    group = f"{readable(stage.group)}, " if stage.group else ""
    return f"{group}stage {stage.number} (ranks {ranks_of(stage.stage.devices)})"


def _events(pid: int, stage: StageTimeline) -> Iterator[dict[str, Any]]:
    yield {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": stage_name(stage)}}
    yield {"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    for each in stage.slices:
        yield _complete(pid, each)


def _complete(pid: int, each: TimelineSlice) -> dict[str, Any]:
    start_us, end_us = (round(time_s * _US_PER_S, _DIGITS) for time_s in (each.start_s, each.end_s))
    known = {"microbatch": each.microbatch, "part": each.part}
    return {
        "name": each.work.value,
        "cat": each.work.name.lower(),
        "ph": "X",
        "pid": pid,
        "tid": 0,
        "ts": start_us,
        "dur": round(end_us - start_us, _DIGITS),
        "args": {name: value for name, value in known.items() if value is not None},
    }
