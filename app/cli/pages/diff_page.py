"""The page that ``meshwright diff`` prints: what stays, what moves and over which links, and which stages receive most."""

from __future__ import annotations

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from meshwright.app.text.console import plain
from meshwright.app.text.figures import axes, gib, number_range, percent, seconds
from meshwright.solver.answer.layouts import Pipelines
from meshwright.solver.answer.pipeline_plan import leading_pipelines
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.switching import Switch, Traffic


def print_diff(console: Console, switch: Switch, old: AnsweredRequest, new: AnsweredRequest) -> None:
    """Print the page of a change of plans."""
    console.print(plain(f"From {_layout(old.plan)}", style="bold"))
    console.print(plain(f"  to {_layout(new.plan)}", style="bold"))
    if switch.moved_bytes == 0:
        console.print()
        console.print(plain("Every device holds what it needs already: nothing moves."))
        return
    console.print()
    console.print(
        plain(
            f"{gib(switch.moved_bytes)} of weights and optimizer state move, {percent(switch.kept_share)} stay in place; "
            f"at least {seconds(switch.time_s)} (network {seconds(switch.network_s)}, fabric {seconds(switch.fabric_s)})"
        )
    )
    if switch.storage_bytes > 0:
        console.print(
            plain(f"{gib(switch.storage_bytes)} are on no device that is left: they come from a checkpoint", style="yellow")
        )
    console.print(_kinds(switch))
    console.print(_stages(switch.total, new.plan))


def _layout(plan: Plan) -> str:
    pipelines = _pipelines(plan)
    return f"{axes(pipelines.axes)}, ZeRO-{pipelines.stages[0].zero_stage}, {plan.devices:,} devices"


def _pipelines(plan: Plan) -> Pipelines:
    pipelines = leading_pipelines(plan)
    assert pipelines is not None, "only training plans with a layout are compared"
    return pipelines


def _kinds(switch: Switch) -> Table:
    table = _table("all devices", "stays", "own node", "network", "storage")
    for name, moved in (("weights", switch.weights), ("optimizer state", switch.optimizer)):
        sums = (moved.kept, moved.from_node, moved.from_network, moved.from_storage)
        table.add_row(name, *(gib(float(values.sum())) for values in sums))
    return table


def _stages(total: Traffic, plan: Plan) -> Table:
    """Means of the devices of each stage, stages of equal means together."""
    table = _table("a device of stage", "keeps", "receives", "sends")
    rows: dict[tuple[str, ...], list[int]] = {}
    for index, stage in enumerate(_pipelines(plan).stages):
        ranks = np.concatenate([np.arange(each.first, each.first + each.count) for each in stage.devices])
        shown = tuple(gib(float(values[ranks].mean())) for values in (total.kept, total.received, total.sent))
        rows.setdefault(shown, []).append(index)
    for shown, indices in rows.items():
        table.add_row(_numbers(indices), *shown)
    return table


def _numbers(indices: list[int]) -> str:
    """ "0, 2-4, 7"."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(number_range(run) for run in runs)


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table
