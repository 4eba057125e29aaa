"""The timeline of a training step: the event program of the plan's schedule, run with the times that the plan predicts.

A pass takes its part of the stage's time, sending included, which plans do not tell apart. What comes after the last
micro-batch (gradient reduction, optimizer, gathers) follows on each stage. The slices of a stage are so the whole of what the
plan says the stage does in a step; the rest of the step is bubble.

A step of more passes than a picture can show is run with fewer micro-batches: those left out repeat the middle of the step.

As a trace https://ui.perfetto.dev and chrome://tracing open it. Format: "Trace Event Format" of Chromium, complete events
(``ph`` X) with times in microseconds. One process a stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from meshwright.app.base.figures import ranks_of
from meshwright.app.base.quoting import json_text, readable
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.model.dims import SliceShares
from meshwright.costmodels.pipeline import Durations, PassKind, Program, Schedule, TimedSlot, positions_of_ranks, simulate
from meshwright.costmodels.pipeline.placement import build, n_positions
from meshwright.solver.answer.layouts import ByGroup, Pipelines, Stagewise, Uniform
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.request import PlanRequest, TrainingRequest
from meshwright.solver.training.space.schedules import pass_shares

MOST_PASSES = 50_000
"""Passes of a pipeline that are run, at most: about 1.3 s of processor time and 30 MB."""
_PASSES_OF_PART = 3
"""Passes of a micro-batch through a part of the model, at most: forward, backward of inputs, backward of weights."""
_PERIOD = 2
"""Schedules repeat themselves after this many micro-batches a rank; none needs more of them to be defined."""


class PassWork(StrEnum):
    """The work of a slice."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT = "backward of inputs"
    WEIGHT = "backward of weights"
    TOGETHER = "forward and backward"
    UPDATE = "gradients and optimizer"


_OF_PASS = {
    PassKind.FORWARD: PassWork.FORWARD,
    PassKind.BACKWARD: PassWork.BACKWARD,
    PassKind.INPUT: PassWork.INPUT,
    PassKind.WEIGHT: PassWork.WEIGHT,
}


@dataclass(frozen=True, slots=True)
class TimelineSlice:
    """Work of a stage from ``start_s`` to ``end_s``; micro-batch and part of the model are None of what follows them all."""

    work: PassWork
    start_s: float
    end_s: float
    microbatch: int | None = None
    part: int | None = None


@dataclass(frozen=True, slots=True)
class StageTimeline:
    """The slices of a stage in a step, in order; ``group`` names its node group where each has pipelines of its own.

    microbatches       micro-batches of the step
    run_microbatches   those that the slices are of
    """

    number: int
    stage: Stage
    slices: tuple[TimelineSlice, ...]
    microbatches: int
    run_microbatches: int
    group: str = ""

    @property
    def busy_s(self) -> float:
        """Time of the whole step in which the stage does not wait."""
        passes_s = sum(each.end_s - each.start_s for each in self.slices if each.work is not PassWork.UPDATE)
        return passes_s * self.microbatches / self.run_microbatches + self.stage.extra_s


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """The stages of one pipeline of each node group, and the step time that the plan predicts."""

    stages: tuple[StageTimeline, ...]
    step_time_s: float

    @property
    def end_s(self) -> float:
        """The end of the last slice."""
        return max(each.slices[-1].end_s for each in self.stages)

    @property
    def bubble_s(self) -> float:
        """The part of the predicted step in which the stage that works longest waits."""
        return max(0.0, self.step_time_s - max(each.busy_s for each in self.stages))

    @property
    def left_out(self) -> str:
        """What of the step is not in the timeline, in words; empty where all is."""
        cut = next((each for each in self.stages if each.run_microbatches < each.microbatches), None)
        if cut is None:
            return ""
        return f"{cut.run_microbatches:,} of {cut.microbatches:,} micro-batches, those left out repeat the middle"


def has_step(answered: AnsweredRequest) -> bool:
    """Return True if ``step_timeline`` gives a timeline; runs nothing."""
    return bool(_pipelines_of(answered))


def step_timeline(answered: AnsweredRequest) -> StepTimeline | None:
    """Return the timeline of a training plan.

    None of a serving plan, where there is no plan, and where the fewest micro-batches of its schedule have more passes than
    MOST_PASSES.
    """
    pipelines, predicted = _pipelines_of(answered), answered.plan.predicted
    if not pipelines or predicted is None or predicted.step_time_s is None:
        return None
    stages = [stage for group, each in pipelines for stage in _of_pipelines(each, answered.request, group)]
    return StepTimeline(tuple(stages), predicted.step_time_s)


def _pipelines_of(answered: AnsweredRequest) -> list[tuple[str, Pipelines]]:
    """The pipelines that are run, by the names of their node groups; none where one can't be."""
    plan = answered.plan
    if not plan.feasible or plan.predicted is None or plan.predicted.step_time_s is None:
        return []
    match plan.layout:
        case Uniform(pipelines=pipelines) | Stagewise(pipelines=pipelines):
            found = [("", pipelines)]
        case ByGroup(groups=groups):
            found = [(each.group, each.pipelines) for each in groups]
        case _:
            return []
    return found if all(_run_microbatches(each) for _, each in found) else []


def _run_microbatches(pipelines: Pipelines) -> int:
    """Micro-batches of a step that are run: all, or as many as MOST_PASSES has; 0 where the schedule needs more than that."""
    n_ranks, count, schedule = len(pipelines.stages), pipelines.microbatch.count, Schedule(pipelines.schedule)
    parts = n_positions(schedule, n_ranks, _chunks_built(pipelines))
    most = MOST_PASSES // (_PASSES_OF_PART * parts * max(1, len(pipelines.token_slices)))
    if count <= most:
        return count
    period = _PERIOD * n_ranks
    fewer = count - period * -((most - count) // period)
    return fewer if fewer >= period else 0


def _chunks_built(pipelines: Pipelines) -> int:
    return max(2, len(pipelines.stages[0].chunk_layers))


def _of_pipelines(pipelines: Pipelines, request: PlanRequest, group: str) -> list[StageTimeline]:
    assert isinstance(request, TrainingRequest)
    stages, schedule = pipelines.stages, Schedule(pipelines.schedule)
    count, run = pipelines.microbatch.count, _run_microbatches(pipelines)
    n_slices = max(1, len(pipelines.token_slices))
    program = build(schedule, len(stages), run, n_chunks=_chunks_built(pipelines), n_slices=n_slices)
    n_chunks = max(1, len(stages[0].chunk_layers))
    spans = simulate(program, _durations(pipelines, request, program, n_chunks)).ranks
    return [
        StageTimeline(number, stage, _slices(spans[number], stage, program.n_slices), count, run, group)
        for number, stage in enumerate(stages)
    ]


def _durations(pipelines: Pipelines, request: TrainingRequest, program: Program, n_chunks: int) -> Durations:
    """Seconds of each part of the model: a stage's time over its parts alike, as schedules' waits are counted, and over passes
    by their FLOPs."""
    stages, slices = pipelines.stages, None
    if pipelines.token_slices:
        slices = SliceShares(
            tuple(each.forward for each in pipelines.token_slices), tuple(each.backward for each in pipelines.token_slices)
        )
    held = positions_of_ranks(program.schedule, len(stages), n_chunks)
    forward, inputs, weights = ([0.0] * program.n_positions for _ in range(3))
    for stage, positions in zip(stages, held, strict=True):
        shares = pass_shares(
            request.model,
            seq_len=request.workload.seq_len,
            recompute=stage.recompute,
            documents=request.workload.documents,
            modules=stage.modules,
        )
        parts = (shares.forward, shares.input, shares.weight)
        if slices is not None:
            parts = (sum(slices.forward), sum(slices.backward), 0.0)
        for position in positions:
            # Where two ranks hold a part (DualPipe), each runs half of the micro-batches on it, and both add to its time: a
            # stage's time is of half a micro-batch on each of its parts.
            of_part_s = stage.time_s / len(positions)
            for passes, share in zip((forward, inputs, weights), parts, strict=True):
                passes[position] += of_part_s * share
    return Durations(forward, inputs, weights, [0.0] * (program.n_positions - 1), slices=slices)


def _slices(spans: Sequence[TimedSlot], stage: Stage, n_slices: int) -> tuple[TimelineSlice, ...]:
    passes = [_slice(span, n_slices) for span in spans]
    if stage.extra_s > 0:
        end_s = passes[-1].end_s
        passes.append(TimelineSlice(PassWork.UPDATE, end_s, end_s + stage.extra_s))
    return tuple(passes)


def _slice(span: TimedSlot, n_slices: int) -> TimelineSlice:
    first = span.slot[0]
    work = _OF_PASS[first.kind] if len(span.slot) == 1 else PassWork.TOGETHER
    return TimelineSlice(work, span.start_s, span.end_s, first.microbatch // n_slices, first.position)


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
