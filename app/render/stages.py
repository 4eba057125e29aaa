"""The table of stages, equal neighbours folded into one line."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from rich import box
from rich.table import Table

from app.render.figures import axes, gib, number_range, percent, seconds, spread
from solver.plan import Plan, Stage

NumberedStage = tuple[int, Stage]


def stage_table(plan: Plan) -> Table:
    """One line for each run of equal stages: layers, devices, axes, recompute, ZeRO, time, memory of its fullest device."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for name in ("stage", "layers", "devices", "recompute", "ZeRO"):
        table.add_column(name, overflow="fold")
    table.add_column(_time_title(plan), justify="right")
    table.add_column("memory", justify="right")
    for run in folded(plan.stages):
        table.add_row(*_row(run))
    return table


def folded(stages: tuple[Stage, ...]) -> list[list[NumberedStage]]:
    """Stages with their numbers, grouped where neighbours hold the same layers on as many devices in the same way."""
    return [list(run) for _, run in groupby(enumerate(stages), key=lambda numbered: _likeness(numbered[1]))]


def _likeness(stage: Stage) -> tuple[object, ...]:
    counts = Counter[str]()
    for span in stage.blocks:
        counts[span.block] += span.count
    n_devices = sum(part.count for part in stage.devices)
    return (tuple(counts.items()), n_devices, stage.axes, stage.recompute, stage.zero_stage)


def _row(run: list[NumberedStage]) -> tuple[str, ...]:
    stages = [stage for _, stage in run]
    first, last = stages[0], stages[-1]
    memories = [stage.memory.total_bytes for stage in stages]
    fullest = max(stages, key=lambda stage: stage.memory.total_bytes).memory
    used = percent(fullest.total_bytes / fullest.capacity_bytes)
    memory = gib(fullest.total_bytes) if min(memories) > 0.995 * max(memories) else f"to {gib(max(memories))}"
    ranks = (first.devices[0].first, last.devices[-1].first + last.devices[-1].count - 1)
    each = "" if len(stages) == 1 else " each"
    return (
        number_range(number for number, _ in run),
        f"{_layers(first)}{each}",
        f"{number_range(set(ranks))} ({axes(first.axes)})",
        first.recompute.value,
        str(first.zero_stage),
        spread(seconds(stage.time_s) for stage in (min(stages, key=_time), max(stages, key=_time))),
        f"{memory} ({used})",
    )


def _layers(stage: Stage) -> str:
    parts: dict[str, int] = {}
    for span in stage.blocks:
        parts[span.block] = parts.get(span.block, 0) + span.count
    return " + ".join(block if count == 1 else f"{count} x {block}" for block, count in parts.items())


def _time(stage: Stage) -> float:
    return stage.time_s


def _time_title(plan: Plan) -> str:
    return "micro-batch" if plan.kind == "training" else "decode step"
