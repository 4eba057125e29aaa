"""Shardings of a plan's operators over tensor-parallel ranks, a table for stages that are alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.app.pictures.tables import plain_table
from meshwright.app.quoting import html_text
from meshwright.app.text.figures import number_range
from meshwright.solver.answer.layouts import ByGroup, Pipelines, Stagewise, Uniform
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import OperatorSharding
from meshwright.solver.blocks.tp_strategies import REPLICATE

MOST_ROWS = 200
"""Operators of a table; the plan document has all."""


def sharding_tables(plan: Plan) -> Iterator[str]:
    """Yield the heading and tables of a training plan whose operators are sharded; nothing of others."""
    tables = [_table(name, shardings, tp) for name, shardings, tp in _parts(plan) if tp > 1 and shardings]
    if tables:
        yield f"<h2>How operators are sharded</h2>{''.join(tables)}"


def _parts(plan: Plan) -> Iterator[tuple[str, Sequence[OperatorSharding], int]]:
    match plan.layout:
        case Uniform(pipelines=pipelines) | Stagewise(pipelines=pipelines):
            yield from _of_pipelines(pipelines, "")
        case ByGroup(groups=groups):
            for each in groups:
                yield from _of_pipelines(each.pipelines, f"{each.group}: ")
        case _:
            return


def _of_pipelines(pipelines: Pipelines, group: str) -> Iterator[tuple[str, Sequence[OperatorSharding], int]]:
    alike: dict[tuple[tuple[OperatorSharding, ...], int], list[int]] = {}
    for number, stage in enumerate(pipelines.stages):
        alike.setdefault((stage.shardings or pipelines.shardings, stage.axes.tp), []).append(number)
    for (shardings, tp), numbers in alike.items():
        stages = "all stages" if len(alike) == 1 else f"stages {', '.join(map(str, numbers))}"
        if len(alike) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
            stages = f"stages {number_range(numbers)}" if len(numbers) > 1 else f"stage {numbers[0]}"
        yield f"{group}{stages}, over tp {tp}", shardings, tp


def _table(name: str, shardings: Sequence[OperatorSharding], tp: int) -> str:
    rows = [
        (html_text(each.block), html_text(each.operator), html_text(_in_words(each.strategy, tp)))
        for each in shardings[:MOST_ROWS]
    ]
    left = len(shardings) - len(rows)
    more = f"<p>{left} more in the plan document</p>" if left > 0 else ""
    return f"<p>{html_text(name)}</p>{plain_table(name, ('block', 'operator', 'sharding'), rows)}{more}"


def _in_words(strategy: str, tp: int) -> str:
    return "whole on every rank" if strategy == REPLICATE else f"{strategy} split {tp} ways"
