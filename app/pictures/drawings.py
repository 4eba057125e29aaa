"""The drawings of a plan: its step over time, the memory of its stages, its frontier, and its figures under load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshwright.app.base.figures import gib, memory_kinds, percent, seconds, significant
from meshwright.app.pictures.charts import Axis, AxisStart, ChartSeries, Limit, Point, bar_rows, line_chart
from meshwright.app.pictures.rank_map import MOST_DEVICES, devices_drawing
from meshwright.app.pictures.step_timeline import PassWork, StageTimeline, TimelineSlice, no_timeline, step_timeline
from meshwright.app.pictures.svg import BARS, LEFT, WIDTH, along_axis, drawing, legend, rectangle, words
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import GIB
from meshwright.solver.answer.layouts import ByGroup, OfWorkers, Stagewise, Uniform
from meshwright.solver.answer.plan import AnsweredRequest, Interactivity, Plan
from meshwright.solver.answer.predicted import TimeBreakdown
from meshwright.solver.answer.stage import Stage, StageMemory

if TYPE_CHECKING:
    from meshwright.solver.switching import Switch

MOST_ROWS = 32
"""Stages that a drawing shows; more are too thin to read."""
MOST_SLICES = 6000
"""Slices that a drawing shows: about 0.7 MB."""
_ROW = 24
_LOOKS = {work: f"c{index}" for index, work in enumerate(PassWork)}


def timeline_drawing(answered: AnsweredRequest, window: tuple[float, float] = (0.0, 1.0)) -> str:
    """Return the step over time, one row a stage, or of it what begins at one share of the step and is another share wide.

    Raises InvalidInputError where there is no step.
    """
    timeline = step_timeline(answered)
    if timeline is None:
        raise no_timeline(answered)
    stages = timeline.stages[:MOST_ROWS]
    start, width = window
    from_s, asked_s = start * timeline.end_s, (start + width) * timeline.end_s
    until_s = _shown_until(stages, from_s, asked_s)
    scale = BARS / max(until_s - from_s, 1e-12)
    parts: list[str] = []
    bars: list[str] = []
    for row, stage in enumerate(stages):
        name = f"{stage.group} {stage.number}" if stage.group else f"stage {stage.number}"
        parts.append(words(0, row * _ROW + 17, name))
        bars.append(rectangle(LEFT, row * _ROW + 3, BARS, _ROW - 6, look="free"))
        for each in _between(stage, from_s, until_s):
            batch = "" if each.microbatch is None else f", micro-batch {each.microbatch}"
            hint = f"{each.work.value}{batch}: {seconds(each.end_s - each.start_s)}"
            start_s, end_s = max(each.start_s, from_s), min(each.end_s, until_s)
            x, width = LEFT + (start_s - from_s) * scale, (end_s - start_s) * scale
            bars.append(rectangle(x, row * _ROW + 3, width, _ROW - 6, look=_LOOKS[each.work], hint=hint))
        parts.append(words(WIDTH, row * _ROW + 17, f"{percent(stage.busy_s / timeline.step_time_s)} busy", end=True))
    parts.append(along_axis(len(stages) * _ROW, bars, from_s, until_s, "s"))
    y = len(stages) * _ROW + 18
    is_whole = from_s <= 0.0 and until_s >= timeline.end_s
    left_out = [timeline.left_out] if timeline.left_out else []
    left_out += [] if is_whole else [f"{seconds(from_s)} to {seconds(until_s)} of {seconds(timeline.end_s)}"]
    left_out += [f"{len(stages)} of {len(timeline.stages)} stages"] if len(stages) < len(timeline.stages) else []
    all_there = "" if timeline.left_out else "; a trace has all"
    shown = f"Shown: {', '.join(left_out)}{all_there}." if left_out else f"The whole step: {seconds(timeline.end_s)}."
    used = {each.work for stage in stages for each in stage.slices}
    parts += [words(LEFT, y, shown), *legend(y + 24, [(_LOOKS[work], work.value) for work in PassWork if work in used])]
    return drawing(f"Pipeline timeline. {shown}", y + 60, parts)


def _between(stage: StageTimeline, from_s: float, until_s: float) -> Iterator[TimelineSlice]:
    return (each for each in stage.slices if each.end_s > from_s and each.start_s < until_s)


def _shown_until(stages: Sequence[StageTimeline], from_s: float, asked_s: float) -> float:
    """The end of what is shown: as asked, or where as many slices are shown as a drawing has."""
    starts = sorted(each.start_s for stage in stages for each in _between(stage, from_s, asked_s))
    end_s = max(stage.slices[-1].end_s for stage in stages)
    return min(end_s, asked_s) if len(starts) <= MOST_SLICES else starts[MOST_SLICES]


def memory_drawing(answered: AnsweredRequest) -> str:
    """Return the memory of the fullest device of each stage, by kind, against what may be used."""
    stages = stages_of(answered.plan)
    if not stages:
        raise InvalidInputError("there are no stages to draw", given="an answer without a plan", allowed="a plan that fits")
    shown = stages[:MOST_ROWS]
    predicted = answered.plan.predicted
    p95_bytes = None if predicted is None else predicted.peak_memory_p95_bytes
    fullest = max(stage.memory.total_bytes for stage in shown)
    largest = max(p95_bytes or 0.0, *(max(stage.memory.total_bytes, stage.memory.capacity_bytes) for stage in shown))
    scale = BARS / largest
    parts: list[str] = []
    bars: list[str] = []
    for row, stage in enumerate(shown):
        memory, x = stage.memory, float(LEFT)
        parts.append(words(0, row * _ROW + 17, f"stage {row}"))
        bars.append(rectangle(LEFT, row * _ROW + 3, memory.capacity_bytes * scale, _ROW - 6, look="free"))
        for index, (name, amount) in enumerate(memory_kinds(memory)):
            if amount > 0:
                hint = f"{name}: {gib(amount)}"
                bars.append(rectangle(x, row * _ROW + 3, amount * scale, _ROW - 6, look=f"c{index}", hint=hint))
                x += amount * scale
        if p95_bytes is not None and memory.total_bytes >= fullest * (1 - 1e-9):
            hint = f"one run of 20 takes more than {gib(p95_bytes)}"
            bars.append(rectangle(LEFT + p95_bytes * scale, row * _ROW + 1, 0.01, _ROW - 2, look="mark", hint=hint))
        parts.append(words(WIDTH, row * _ROW + 17, f"{gib(memory.total_bytes)}, {_fullness(memory)}", end=True))
    parts.append(along_axis(len(shown) * _ROW, bars, 0.0, largest / GIB, "GiB"))
    y = len(shown) * _ROW + 18
    said = f"Of {gib(shown[0].memory.capacity_bytes)} that may be used"
    said += "" if p95_bytes is None else f"; the mark is what one run of 20 exceeds, {gib(p95_bytes)}"
    said += f"; {len(shown)} of {len(stages)} stages are shown" if len(shown) < len(stages) else ""
    used = {name for stage in shown for name, amount in memory_kinds(stage.memory) if amount > 0}
    names = [(f"c{i}", name) for i, (name, _) in enumerate(memory_kinds(shown[0].memory)) if name in used]
    return drawing(f"Memory of each stage. {said}.", y + 70, [*parts, words(LEFT, y, said), *legend(y + 24, names)])


def frontier_drawing(answered: AnsweredRequest, follow: Callable[[str], str | None] = lambda name: None) -> str:
    """Return the plans that no other beats in all respects, by speed and memory; a point leads where ``follow`` says."""
    points = answered.plan.frontier
    if not points:
        said = "The plan has no frontier: plan with --frontier, which sweeps for it."
        return drawing(said, 24, [words(0, 16, said)])
    drawn = tuple(
        Point(
            each.peak_memory_bytes,
            each.tokens_per_s,
            f"{each.summary}: {significant(each.tokens_per_s)} tokens/s, {gib(each.peak_memory_bytes)}, {each.devices} devices",
            follow(each.summary),
        )
        for each in points
    )
    axes = Axis("memory of a device", gib, AxisStart.NEAR), Axis("tokens/s", start=AxisStart.NEAR)
    return line_chart(f"Frontier of {len(points)} plans", *axes, [ChartSeries("", drawn, is_apart=True)])


_PARTS_OF_STEP = (
    ("compute", "compute_s"),
    ("recompute", "recompute_s"),
    ("tp communication", "tp_comm_s"),
    ("cp communication", "cp_comm_s"),
    ("ep communication", "ep_comm_s"),
    ("pp communication", "pp_comm_s"),
    ("dp communication", "dp_comm_s"),
    ("offload", "offload_s"),
    ("bubble", "bubble_s"),
    ("optimizer", "optimizer_s"),
)


def breakdown_drawing(breakdown: TimeBreakdown) -> str:
    """Return the parts of a step's time on the slowest stage; communication is what no work hides."""
    whole = sum(getattr(breakdown, name) for _, name in _PARTS_OF_STEP)
    parts = [(words, getattr(breakdown, name)) for words, name in _PARTS_OF_STEP]
    rows = [(words, took_s, f"{seconds(took_s)}, {percent(took_s / whole)}") for words, took_s in parts if took_s > 0]
    return bar_rows("Where the time of a step goes. Communication is what no work hides.", rows)


def interactivity_drawing(drawn: Interactivity) -> str:
    """Return throughput of a device against tokens per second of a user, and the plan itself at its load."""
    points = tuple(
        Point(
            each.tokens_per_s_per_user,
            each.tokens_per_s_per_device,
            f"{each.summary}, {significant(each.batch)} sequences at once: {significant(each.tokens_per_s_per_device)} "
            f"tokens/s a device, {significant(each.tokens_per_s_per_user)} tokens/s to a user",
        )
        for each in sorted(drawn.points, key=lambda point: point.tokens_per_s_per_user)
    )
    user, device = drawn.plan_tokens_per_s_per_user, drawn.plan_tokens_per_s_per_device
    said = f"this plan at its load: {significant(device)} tokens/s a device, {significant(user)} tokens/s to a user"
    own = ChartSeries("this plan at its load", (Point(user, device, said),), is_apart=True)
    axes = Axis("output tokens/s of a user"), Axis("output tokens/s of a device")
    steady = ChartSeries("steady states of full batches, no queue", points)
    return line_chart("Throughput of a device against tokens per second of a user", *axes, [steady, own])


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


_NAMES = {"ttft": "P95 time to first token", "tpot": "P95 time per output token"}
_WHOLE = {"ttft": "time to first token", "tpot": "time per output token", "end_to_end": "time of a whole request"}

MOST_OVER = 2.5
"""A course is drawn up to so many times the larger of its target and its value at the plan's own load: beyond, the queue grows
without end, and nothing else could be read."""


def load_drawings(course: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield titles and drawings of percentiles over the load."""
    for name, title in _NAMES.items():
        told = [(point["load"], point[f"{name}_p95_s"]) for point in course["course"]]
        known = [(load, value) for load, value in told if value is not None]
        if known:
            yield f"{title} over the load", _course(course, name, title, known)


def _course(course: Mapping[str, Any], name: str, title: str, told: Sequence[tuple[float, float]]) -> str:
    own, unit, target = course["own"], course["unit"], course["targets_s"][name]
    at_own = min(told, key=lambda each: abs(each[0] - own))[1]
    most = MOST_OVER * max(at_own, target or 0.0)
    shown = [each for each in told if each[1] <= most]
    points = tuple(Point(load, value, f"{significant(load)} {unit}: {seconds(value)}") for load, value in shown)
    here = Point(own, at_own, f"the plan's own load, {significant(own)} {unit}: {seconds(at_own)}")
    over = "" if len(shown) == len(told) else f"; from {significant(told[len(shown)][0])} {unit} on the queue grows"
    limits = [] if target is None else [Limit(target, f"target {seconds(target)}")]
    series = [ChartSeries("simulated", points), ChartSeries("the plan's own load", (here,), is_apart=True)]
    return line_chart(f"{title} over the load{over}", Axis(f"{unit}{over}"), Axis(title, seconds), series, limits)


def distribution_drawings(course: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield titles and drawings of how long requests take at the plan's own load: the share of them that takes no longer."""
    percentiles = course["percentiles"]
    for name, title in _WHOLE.items():
        spread = course["spread_s"][name]
        if not spread:
            continue
        points = tuple(
            Point(value, at / 100, f"{at}% of requests: {seconds(value)} or less" if at % 10 == 0 or at in (95, 99) else "")
            for at, value in zip(percentiles, spread, strict=True)
        )
        axes = Axis(title, seconds), Axis("share of requests that takes no longer", percent)
        yield f"Distribution: {title}", line_chart(f"Distribution of the {title}", *axes, [ChartSeries("", points)])


def over_time_drawings(simulation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield titles and drawings of requests that wait and decode on one worker over time, and of how busy it is."""
    parts = simulation.get("kinds") or [{"name": "", **simulation}]
    for part in parts:
        line, of_kind = part["timeline"], f", {part['name']}" if part["name"] else ""
        if line is None:
            continue
        ends = [(index + 1) * line["interval_s"] for index in range(len(line["busy"]))]
        both = [ChartSeries(name, _points(ends, line[name])) for name in ("waiting", "decoding")]
        time = Axis("time", seconds)
        yield f"Requests over time{of_kind}", line_chart("Requests that wait and that decode", time, Axis("requests"), both)
        busy = ChartSeries("", _points(ends, line["busy"]))
        yield f"Work over time{of_kind}", line_chart("Share of time that works", time, Axis("busy", percent), [busy])


def _points(ends: Sequence[float], values: Sequence[float]) -> tuple[Point, ...]:
    return tuple(Point(end, value) for end, value in zip(ends, values, strict=True))


# The bytes that each device receives when a training run changes its plan, over the nodes of the new plan's cluster.

_LEVELS = 4
"""Shades, the least first."""


def exchange_drawing(switch: Switch, cluster: Cluster) -> str:
    """Return the devices shaded by what they receive; nothing of clusters too large to draw, whose stages tell."""
    if cluster.n_devices > MOST_DEVICES:
        return ""
    received, kept, sent = switch.total.received, switch.total.kept, switch.total.sent
    most = max(float(received.max()), 1.0)

    def look(device: int) -> tuple[str, str]:
        share = float(received[device]) / most
        level = 0 if share <= 0 else min(_LEVELS, 1 + int(share * (_LEVELS - 1)))
        said = f"keeps {gib(float(kept[device]))}, receives {gib(float(received[device]))}, sends {gib(float(sent[device]))}"
        return f"s{level}", said

    names = [("s0", "receives nothing"), ("s1", "little"), (f"s{_LEVELS}", f"most: {gib(most)}")]
    return devices_drawing("What each device receives", cluster, look, names)
