"""The drawings of a plan: its step over time, the memory of its stages, its frontier."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.app.pictures.step_timeline import StageTimeline, Work, step_timeline
from meshwright.app.pictures.svg import LEFT, WIDTH, circle, drawing, legend, rectangle, words
from meshwright.app.pictures.trace import no_timeline
from meshwright.app.text.figures import gib, percent, seconds, significant
from meshwright.app.text.memory import memory_kinds
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.layouts import ByGroup, OfWorkers, Stagewise, Uniform
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.answer.stage import Stage, StageMemory

MOST_ROWS = 32
"""Stages that a drawing shows; more are too thin to read."""
MOST_SLICES = 6000
"""Slices that a drawing shows: about 0.7 MB."""
_ROW = 24
_BARS = WIDTH - LEFT - 110
_LOOKS = {work: f"c{index}" for index, work in enumerate(Work)}


def timeline_drawing(answered: AnsweredRequest) -> str:
    """Return the step over time, one row a stage; raises InvalidInputError where there is no step."""
    timeline = step_timeline(answered)
    if timeline is None:
        raise no_timeline(answered)
    stages = timeline.stages[:MOST_ROWS]
    until_s = _shown_until(stages)
    scale = _BARS / max(until_s, 1e-12)
    parts = []
    for row, stage in enumerate(stages):
        name = f"{stage.group} {stage.number}" if stage.group else f"stage {stage.number}"
        parts += [words(0, row * _ROW + 17, name), rectangle(LEFT, row * _ROW + 3, _BARS, _ROW - 6, look="free")]
        for each in stage.slices:
            if each.start_s >= until_s:
                break
            batch = "" if each.microbatch is None else f", micro-batch {each.microbatch}"
            hint = f"{each.work.value}{batch}: {seconds(each.end_s - each.start_s)}"
            width = (min(each.end_s, until_s) - each.start_s) * scale
            place = (LEFT + each.start_s * scale, row * _ROW + 3)
            parts.append(rectangle(*place, max(0.3, width - 0.4), _ROW - 6, look=_LOOKS[each.work], hint=hint))
        parts.append(words(WIDTH, row * _ROW + 17, f"{percent(stage.busy_s / timeline.step_time_s)} busy", end=True))
    y = len(stages) * _ROW + 18
    left_out = [f"the first {seconds(until_s)} of {seconds(timeline.end_s)}"] if until_s < timeline.end_s else []
    left_out += [f"{len(stages)} of {len(timeline.stages)} stages"] if len(stages) < len(timeline.stages) else []
    shown = f"Shown: {', '.join(left_out)}; a trace has all." if left_out else f"The whole step: {seconds(timeline.end_s)}."
    used = {each.work for stage in stages for each in stage.slices}
    parts += [words(LEFT, y, shown), *legend(y + 24, [(_LOOKS[work], work.value) for work in Work if work in used])]
    return drawing(f"Pipeline timeline. {shown}", y + 60, parts)


def _shown_until(stages: Sequence[StageTimeline]) -> float:
    starts = sorted(each.start_s for stage in stages for each in stage.slices)
    end_s = max(stage.slices[-1].end_s for stage in stages)
    return end_s if len(starts) <= MOST_SLICES else starts[MOST_SLICES]


def memory_drawing(answered: AnsweredRequest) -> str:
    """Return the memory of the fullest device of each stage, by kind, against what may be used."""
    stages = stages_of(answered.plan)
    if not stages:
        raise InvalidInputError("there are no stages to draw", given="an answer without a plan", allowed="a plan that fits")
    shown = stages[:MOST_ROWS]
    largest = max(max(stage.memory.total_bytes, stage.memory.capacity_bytes) for stage in shown)
    scale, parts = _BARS / largest, []
    for row, stage in enumerate(shown):
        memory, x = stage.memory, float(LEFT)
        parts.append(words(0, row * _ROW + 17, f"stage {row}"))
        parts.append(rectangle(LEFT, row * _ROW + 3, memory.capacity_bytes * scale, _ROW - 6, look="free"))
        for index, (name, amount) in enumerate(memory_kinds(memory)):
            if amount > 0:
                hint = f"{name}: {gib(amount)}"
                parts.append(rectangle(x, row * _ROW + 3, amount * scale, _ROW - 6, look=f"c{index}", hint=hint))
                x += amount * scale
        parts.append(words(WIDTH, row * _ROW + 17, f"{gib(memory.total_bytes)}, {_fullness(memory)}", end=True))
    y = len(shown) * _ROW + 18
    said = f"Of {gib(shown[0].memory.capacity_bytes)} that may be used"
    said += f"; {len(shown)} of {len(stages)} stages are shown" if len(shown) < len(stages) else ""
    used = {name for stage in shown for name, amount in memory_kinds(stage.memory) if amount > 0}
    names = [(f"c{i}", name) for i, (name, _) in enumerate(memory_kinds(shown[0].memory)) if name in used]
    return drawing(f"Memory of each stage. {said}.", y + 70, [*parts, words(LEFT, y, said), *legend(y + 24, names)])


def frontier_drawing(answered: AnsweredRequest) -> str:
    """Return the plans that no other beats in all respects, by speed and memory."""
    points = answered.plan.frontier
    if not points:
        said = "The plan has no frontier: plan with --frontier, which sweeps for it."
        return drawing(said, 24, [words(0, 16, said)])
    top, height = 20.0, 240.0
    fastest, fullest = max(each.tokens_per_s for each in points), max(each.peak_memory_bytes for each in points)
    parts = [words(LEFT, 14, f"up: tokens/s, to {significant(fastest)}; right: memory of a device, to {gib(fullest)}")]
    for each in points:
        hint = (
            f"{each.summary}: {significant(each.tokens_per_s)} tokens/s, {gib(each.peak_memory_bytes)}, {each.devices} devices"
        )
        x = LEFT + each.peak_memory_bytes / fullest * _BARS
        parts.append(circle(x, top + height * (1 - each.tokens_per_s / fastest) + 8, look="c0", hint=hint))
    return drawing(f"Frontier of {len(points)} plans", int(top + height) + 20, parts)


def stages_of(plan: Plan) -> tuple[Stage, ...]:
    """Return the stages of all parts of a plan, in order."""
    match plan.layout:
        case Uniform(pipelines=pipelines) | Stagewise(pipelines=pipelines):
            return pipelines.stages
        case ByGroup(groups=groups):
            return tuple(stage for each in groups for stage in each.pipelines.stages)
        case OfWorkers() as layout:
            return tuple(stage for workers in layout.all_workers for stage in workers.stages)
        case _:
            return ()


def _fullness(memory: StageMemory) -> str:
    return percent(memory.total_bytes / memory.capacity_bytes)
