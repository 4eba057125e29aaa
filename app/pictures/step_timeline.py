"""The timeline of a training step: the event program of the plan's schedule, run with the times that the plan predicts.

A pass takes its part of the stage's time, sending included, which plans do not tell apart. What comes after the last
micro-batch (gradient reduction, optimizer, gathers) follows on each stage. The slices of a stage are so the whole of what the
plan says the stage does in a step; the rest of the step is bubble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from meshwright.costmodels.model.dims import SliceShares
from meshwright.costmodels.pipeline import Durations, PassKind, Program, Schedule, TimedSlot, positions_of_ranks, simulate
from meshwright.costmodels.pipeline.placement import build
from meshwright.solver.answer.layouts import ByGroup, Pipelines, Stagewise, Uniform
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.request import PlanRequest, TrainingRequest
from meshwright.solver.training.space.schedules import pass_shares


class Work(StrEnum):
    """The work of a slice."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT = "backward of inputs"
    WEIGHT = "backward of weights"
    TOGETHER = "forward and backward"
    UPDATE = "gradients and optimizer"


_OF_PASS = {
    PassKind.FORWARD: Work.FORWARD,
    PassKind.BACKWARD: Work.BACKWARD,
    PassKind.INPUT: Work.INPUT,
    PassKind.WEIGHT: Work.WEIGHT,
}


@dataclass(frozen=True, slots=True)
class TimelineSlice:
    """Work of a stage from ``start_s`` to ``end_s``; micro-batch and part of the model are None of what follows them all."""

    work: Work
    start_s: float
    end_s: float
    microbatch: int | None = None
    part: int | None = None


@dataclass(frozen=True, slots=True)
class StageTimeline:
    """The slices of a stage in a step, in order; ``group`` names its node group where each has pipelines of its own."""

    number: int
    stage: Stage
    slices: tuple[TimelineSlice, ...]
    group: str = ""

    @property
    def busy_s(self) -> float:
        """Time in which the stage does not wait."""
        return sum(each.end_s - each.start_s for each in self.slices)


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


def step_timeline(answered: AnsweredRequest) -> StepTimeline | None:
    """Return the timeline of a training plan; None of a serving plan, and where there is no plan."""
    plan, request = answered.plan, answered.request
    if not plan.feasible or plan.predicted is None or plan.predicted.step_time_s is None:
        return None
    match plan.layout:
        case Uniform(pipelines=pipelines) | Stagewise(pipelines=pipelines):
            stages = _of_pipelines(pipelines, request)
        case ByGroup(groups=groups):
            stages = [stage for each in groups for stage in _of_pipelines(each.pipelines, request, each.group)]
        case _:
            return None
    return StepTimeline(tuple(stages), plan.predicted.step_time_s)


def _of_pipelines(pipelines: Pipelines, request: PlanRequest, group: str = "") -> list[StageTimeline]:
    assert isinstance(request, TrainingRequest)
    stages, schedule = pipelines.stages, Schedule(pipelines.schedule)
    n_chunks = max(1, len(stages[0].chunk_layers))
    count = pipelines.microbatch.count
    program = build(schedule, len(stages), count, n_chunks=max(2, n_chunks), n_slices=max(1, len(pipelines.token_slices)))
    spans = simulate(program, _durations(pipelines, request, program, n_chunks)).ranks
    return [
        StageTimeline(number, stage, _slices(spans[number], stage, program.n_slices), group)
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
            request.model, seq_len=request.workload.seq_len, recompute=stage.recompute, documents=request.workload.documents
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
        passes.append(TimelineSlice(Work.UPDATE, end_s, end_s + stage.extra_s))
    return tuple(passes)


def _slice(span: TimedSlot, n_slices: int) -> TimelineSlice:
    first = span.slot[0]
    work = _OF_PASS[first.kind] if len(span.slot) == 1 else Work.TOGETHER
    return TimelineSlice(work, span.start_s, span.end_s, first.microbatch // n_slices, first.position)
