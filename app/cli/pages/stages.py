"""The stages of a plan: a table of what they hold and how, and bars of what they need; equal neighbours are one line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from meshwright.app.text.bars import bar
from meshwright.app.text.console import plain
from meshwright.app.text.figures import axes, gib, number_range, percent, ranks_of, seconds, spread
from meshwright.app.text.memory import memory_kinds
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.answer.stage import Stage

NumberedStage = tuple[int, Stage]


def stage_table(stages: Sequence[Stage], *, step: str, trains: bool) -> Table:
    """One line a run of equal stages: layers, ranks, time of a ``step``; axes where stages differ in them; recompute and ZeRO
    where it ``trains``."""
    differ = len({stage.axes for stage in stages}) > 1
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for name in ("stage", "layers", "ranks", *(["axes"] if differ else []), *(["recompute", "ZeRO"] if trains else [])):
        table.add_column(name, overflow="fold")
    table.add_column(step, justify="right")
    for run in folded(stages):
        alike = [stage for _, stage in run]
        first = alike[0]
        table.add_row(
            number_range(number for number, _ in run),
            _layers(first) + (" each" if len(run) > 1 else ""),
            ranks_of(devices for stage in alike for devices in stage.devices),
            *([axes(first.axes)] if differ else []),
            *([recompute(first), str(first.zero_stage)] if trains else []),
            spread(seconds(time_s) for time_s in sorted(stage.time_s for stage in alike)),
        )
    return table


def memory_bars(stages: Sequence[Stage]) -> Group:
    """One bar for each run of equal stages, its fullest device against what may be used, and what fills the fullest of all."""
    table = Table.grid(padding=(0, 1))
    for run in folded(stages):
        totals = [stage.memory.total_bytes for _, stage in run]
        fullest = max((stage for _, stage in run), key=_fullness)
        amount = spread(gib(total) for total in sorted({min(totals), max(totals)}))
        numbers = number_range(number for number, _ in run)
        table.add_row(f"  stage {numbers}", bar(_fullness(fullest)), amount, percent(_fullness(fullest)))
    fullest = max(stages, key=_fullness)
    title = f"Memory of the fullest device, of {gib(fullest.memory.capacity_bytes)} that may be used"
    kinds = plain(f"at most: {_memory_kinds(fullest)}", style="dim")
    return Group(plain(title, style="bold"), table, Padding(kinds, (0, 0, 0, 2), expand=False))


def folded(stages: Sequence[Stage]) -> list[list[NumberedStage]]:
    """Stages with their numbers, grouped where neighbours hold the same layers on as many devices in the same way."""
    return [list(run) for _, run in groupby(enumerate(stages), key=lambda numbered: _likeness(numbered[1]))]


def recompute(stage: Stage) -> str:
    """Return the recompute mode of a stage, and of how many layers where not of all."""
    return stage.recompute.value + stage.of_layers


def _likeness(stage: Stage) -> tuple[object, ...]:
    n_devices = sum(part.count for part in stage.devices)
    return (tuple(_counts(stage).items()), n_devices, stage.axes, recompute(stage), stage.zero_stage)


def _layers(stage: Stage) -> str:
    return " + ".join(block if count == 1 else f"{count} x {block}" for block, count in _counts(stage).items())


def _counts(stage: Stage) -> dict[str, int]:
    counts: dict[str, int] = {}
    for span in stage.blocks:
        counts[span.block] = counts.get(span.block, 0) + span.count
    return counts


def _fullness(stage: Stage) -> float:
    return stage.memory.total_bytes / stage.memory.capacity_bytes


def _memory_kinds(stage: Stage) -> str:
    return ", ".join(f"{name} {gib(amount)}" for name, amount in memory_kinds(stage.memory) if amount > 0)


def memory_at_risk(predicted: Predicted) -> list[RenderableType]:
    """The quantiles of a training plan's memory; nothing of serving plans, and of plans of versions that told none."""
    if predicted.peak_memory_p95_bytes is None or predicted.chance_out_of_memory is None:
        return []
    median, p95 = gib(predicted.peak_memory_bytes), gib(predicted.peak_memory_p95_bytes)
    chance = percent(predicted.chance_out_of_memory)
    text = f"{median} at the median, more than {p95} in one run of 20, out of memory in {chance} of runs"
    return [plain("Memory at risk: ", style="bold") + plain(text)]
