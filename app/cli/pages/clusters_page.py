"""The page of one question asked of several clusters: a row for each, the best first, and why others have no plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table

from meshwright.app.base.console import indented, plain
from meshwright.app.base.errors import DocumentError
from meshwright.app.base.figures import counted
from meshwright.app.cli.pages.plan_page import NextStep, ending, need_and_have, question
from meshwright.app.requests.plan_documents import plan_document
from meshwright.app.requests.several_clusters import cluster_row, known_figures, row_without_plan
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.launchers.table import asked_launcher
from meshwright.solver.problem.request import ServingRequest, TrainingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """The words of a cluster, and the answer there; or why the request can't be asked of it."""

    words: str
    answer: AnsweredRequest | InvalidInputError

    @property
    def rank(self) -> tuple[bool, float, str]:
        """The place of the row: the best objective first, ties by name, clusters without a plan last."""
        match self.answer:
            case AnsweredRequest(plan) if plan.feasible:
                assert plan.certificate.objective is not None, "a feasible plan has an objective"
                return (False, plan.certificate.objective, self.words)
            case _:
                return (True, 0.0, self.words)

    @property
    def has_plan(self) -> bool:
        """True if the cluster has a plan that meets the request."""
        return isinstance(self.answer, AnsweredRequest) and self.answer.plan.feasible

    @property
    def may_have_a_plan_with_more(self) -> bool:
        """True if the request was asked of the cluster, and this one has no plan."""
        return isinstance(self.answer, AnsweredRequest) and not self.answer.plan.feasible

    @property
    def document(self) -> dict[str, Any]:
        """The row as JSON."""
        if isinstance(self.answer, InvalidInputError):
            return row_without_plan(self.words, str(self.answer))
        return cluster_row(self.words, plan_document(self.answer.plan), asked_launcher(self.answer.request))


def print_clusters(console: Console, rows: Sequence[ClusterRow], not_tried: Sequence[str], next_step: NextStep) -> None:
    """Print the table of rows that are in order, why some have no plan, what was not tried, and what to do next."""
    first = next(row.answer for row in rows if isinstance(row.answer, AnsweredRequest))
    request = first.request
    launcher = asked_launcher(request)
    with_it = "" if launcher is None else f", with {launcher}"
    on = counted(len(rows), "cluster")
    console.print(plain(f"{question(first.plan, request, on=on)}{with_it}; by {_OBJECTIVE[request.objective]}", style="bold"))
    console.print()
    print_rows(console, rows, first, title="cluster")
    if not_tried:
        untried = f"Not tried, for want of time: {counted(len(not_tried), 'cluster')} ({', '.join(not_tried)})"
        console.print(plain(untried, style="yellow"))
    console.print()
    console.print(ending(next_step))


def print_rows(console: Console, rows: Sequence[ClusterRow], first: AnsweredRequest, *, title: str) -> None:
    """Print the table of rows, what its columns are, and why some have no plan; ``title`` is of the words of each."""
    console.print(_table(rows, first, title))
    console.print(plain(_key(first), style="dim"))
    without = [row for row in rows if not row.has_plan]
    if without:
        lines = [indented(plain(f"{row.words}: {_why_not(row)}"), 2) for row in without]
        console.print(Group(plain("No plan", style="bold"), *lines))


_OBJECTIVE = {
    Objective.THROUGHPUT: "throughput",
    Objective.STEP_TIME: "step time",
    Objective.DEVICES: "devices",
    Objective.COST: "cost",
    Objective.ENERGY: "energy",
}


_LONGEST_WORDS = 16
"""Columns that words of a cluster have in any case; the figures beside them leave as many of the 80."""


def _table(rows: Sequence[ClusterRow], first: AnsweredRequest, title: str) -> Table:
    planned = [row.answer for row in rows if isinstance(row.answer, AnsweredRequest) and row.has_plan]
    columns = known_figures(planned)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    longest = max(len(row.words) for row in rows)
    table.add_column(title, overflow="fold", min_width=min(longest, _LONGEST_WORDS))
    for column in columns:
        table.add_column(column.title, justify="right")
    if not columns:
        table.add_column("")
    for row in rows:
        if isinstance(row.answer, AnsweredRequest) and row.has_plan:
            table.add_row(plain(row.words), *(column.words(row.answer) for column in columns))
        else:
            table.add_row(plain(row.words), "no plan")
    return table


def _why_not(row: ClusterRow) -> str:
    """Return the tightest constraint of a cluster without a plan, in few words."""
    if isinstance(row.answer, DocumentError):
        return row.answer.fields[0].problem
    if isinstance(row.answer, InvalidInputError):
        return row.answer.problem
    plan = row.answer.plan
    assert plan.reason is not None, "an answer without a plan has a reason"
    if not plan.is_decided:
        return "undecided, the search was stopped"
    return f"{plan.reason.constraint.replace('_', ' ')}, {need_and_have(plan.reason, row.answer.request)}"


def _key(answer: AnsweredRequest) -> str:
    """Return what the columns are."""
    request = answer.request
    energy = f"J: {answer.plan.certificate.unit}. " if request.objective is Objective.ENERGY else ""
    money = f"{energy}USD/h: list price of the devices used. gap: how far from optimal at most."
    return f"{_KEYS[request.workload.kind](request)}. {money}"


def _training_key(request: TrainingRequest) -> str:
    run = "" if request.workload.run_tokens is None else f". run, USD: of {request.workload.run_tokens:,} tokens"
    return f"OOM: chance to run out of memory{run}"


def _serving_key(request: ServingRequest) -> str:
    figures = "TTFT and TPOT: 95th percentiles"
    if request.objective is Objective.THROUGHPUT and not isinstance(request.workload.arrivals, ClosedArrivals):
        figures += ", at the highest rate at which the cluster keeps the targets, or keeps up"
    return figures


_KEYS: Mapping[str, Callable[[Any], str]] = {"training": _training_key, "serving": _serving_key}
"""What the columns are, by the kind of workload."""
