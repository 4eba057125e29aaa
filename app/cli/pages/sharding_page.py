"""The page that ``meshwright shard --model`` prints: how good, what every operator does, what is sent."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from meshwright.app.base.console import plain
from meshwright.app.base.figures import counted, gib, percent, seconds, significant

Json = dict[str, Any]

GB = 1e9
MOST_TRANSFERS = 8
"""Kinds of transfers that the page names; --json has all."""


def print_model_sharding(console: Console, answer: Json) -> None:
    """Print the answer of ``run_model_sharding``."""
    mesh = " x ".join(f"{name} {size}" for name, size in answer["mesh"].items())
    console.print(plain(f"{answer['name']} over a mesh of {mesh}", style="bold"))
    console.print()
    console.print(plain(_headline(answer)))
    if not answer["feasible"]:
        return
    console.print(plain(_figures(answer)))
    console.print()
    console.print(_operators(answer))
    if answer["communication"]:
        console.print(_transfers(answer["communication"]))
    console.print(
        plain(
            f"Solved in {seconds(answer['seconds'])}, {counted(answer['classes'], 'class', 'classes')} of operators",
            style="dim",
        )
    )


def _headline(answer: Json) -> str:
    match answer["status"]:
        case "optimal":
            return "Optimal: no sharding over this mesh is faster under this cost model."
        case "feasible":
            return (
                f"Best found: no sharding over this mesh is faster by more than {percent(answer['gap'])} under this cost model."
            )
        case "infeasible":
            least = answer["least_peak_bytes"]
            needs = "" if least is None else f" The fastest sharding would need {gib(least)} of a device."
            return (
                f"Infeasible: no sharding over this mesh fits {gib(answer['memory_limit_bytes'])} of a device, nothing "
                f"recomputed.{needs} A larger mesh or a smaller global batch would help."
            )
    return "Not decided: the search was stopped before it found a sharding that fits; raise --time-limit."


def _figures(answer: Json) -> str:
    microbatches = counted(answer["microbatches"], "micro-batch", "micro-batches")
    memory = f"{gib(answer['peak_memory_bytes'])} of {gib(answer['memory_limit_bytes'])}"
    return f"{seconds(answer['step_time_s'])} a step of {microbatches}; peak memory {memory}"


def _operators(answer: Json) -> Table:
    """One line for all operators of a name in a block that do the same."""
    names = list(answer["mesh"])
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("operator", overflow="fold")
    table.add_column("count", justify="right")
    for name in names:
        table.add_column(name, overflow="fold")
    table.add_column("weights split over", overflow="fold")
    rows: dict[tuple[str, ...], int] = {}
    for operator in answer["operators"]:
        split = ", ".join(operator["weights_split_over"])
        key = (f"{operator['block']}/{operator['operator']}", *(operator["axes"][name] for name in names), split)
        rows[key] = rows.get(key, 0) + operator["count"]
    for (name, *rest), count in rows.items():
        table.add_row(name, str(count), *rest)
    return table


def _transfers(communication: list[Json]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("sent by a device", overflow="fold")
    table.add_column("pass")
    table.add_column("over", overflow="fold")
    table.add_column("GB a step", justify="right")
    table.add_column("time", justify="right")
    for sent in communication[:MOST_TRANSFERS]:
        what = f"{sent['collective'].replace('_', '-')} ({sent['purpose']})"
        table.add_row(
            what, sent["phase"], ", ".join(sent["axes"]), significant(sent["bytes_sent"] / GB), seconds(sent["seconds"])
        )
    return table
