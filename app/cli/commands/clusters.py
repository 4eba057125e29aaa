"""``plan`` for several clusters: one question asked of each, and one table of the answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.app.base.errors import EXIT_GOOD, EXIT_NO
from meshwright.app.base.output_files import OutputFile, check_one_stdout, check_output, is_stdout, write_outputs
from meshwright.app.base.quoting import csv_text, json_text
from meshwright.app.base.settings import Settings
from meshwright.app.base.solving import TimeLimit
from meshwright.app.cli.commands.exits import Output, print_json, say
from meshwright.app.cli.commands.one_line import fetch_model, named_clusters
from meshwright.app.cli.commands.planning import PlanCommand, Store, answer, next_step, request_of
from meshwright.app.cli.commands.stored_plans import open_store
from meshwright.app.cli.pages.clusters_page import ClusterRow, print_clusters
from meshwright.app.cli.pages.plan_page import NextStep
from meshwright.app.pictures.files import Picture
from meshwright.app.requests.digests import keyed_request
from meshwright.app.requests.one_line import request_of_line
from meshwright.app.requests.options import OneLine
from meshwright.app.requests.plan_documents import flat, read_plan
from meshwright.app.requests.several_clusters import NODES, clusters_document, usual_nodes
from meshwright.app.store.plans import PlanStore
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest

USUAL_NODES_S = 300.0
"""Seconds after which no more of the catalogue's nodes is asked; what is under way may take its search's own limit.

Measured: one node of each of 18 types, asked to serve llama-3.1-70b at the least cost, took 100 s; 37 clusters took 345 s.
"""


def run_clusters(line: OneLine, command: PlanCommand, settings: Settings, *, download: bool) -> int:
    """Plan a line's question on each of its clusters, keep the plans, print one table; exit code 1 where none has a plan.

    A line that names none is asked of the catalogue's usual nodes. Each plan is what the line with this cluster alone is
    answered with. ``command`` has what all have in common.

    Raises InvalidInputError for options of one plan, and where the question can't be asked of any of the clusters.
    """
    _check_options(command)
    fetch_model(line, download=download)
    asking = _Asking(line, command, settings, None if command.store is Store.NONE else open_store(settings))
    untried = list[str]()
    named = named_clusters(line)
    answered = list(_asked_of_each(asking, named) if named else _asked_of_usual_nodes(asking, untried))
    if all(isinstance(each.row.answer, InvalidInputError) for each in answered):
        raise next(each.row.answer for each in answered if isinstance(each.row.answer, InvalidInputError))
    answered.sort(key=lambda each: each.row.rank)
    rows = [each.row for each in answered]
    document = clusters_document((row.document for row in rows), untried)
    csv = command.pictures.get(Picture.CSV)
    files = [] if csv is None else [OutputFile(csv, csv_text(flat(each) for each in document["clusters"]))]
    is_json = command.output is Output.JSON
    if command.file is not None and not (is_json and is_stdout(command.file)):
        files.append(OutputFile(command.file, json_text(document) + "\n"))
    write_outputs(files, what="table of clusters")
    if is_json:
        print_json(document)
    else:
        from meshwright.app.base.console import page_console

        to = sys.stderr if any(is_stdout(file.path) for file in files) else sys.stdout
        print_clusters(page_console(to), rows, untried, answered[0].next_step)
    return EXIT_GOOD if rows[0].has_plan else EXIT_NO


def _check_options(command: PlanCommand) -> None:
    """Refuse what one plan has, before anything is solved; raises InvalidInputError."""
    given = [f"--{kind.value}" for kind in command.pictures if kind is not Picture.CSV]
    given += ["--explain"] * (command.explain is not None)
    if given:
        raise of_one_plan(given)
    if command.file is not None:
        check_output(command.file, what="output")
    outputs = [command.pictures.get(Picture.CSV), *([] if command.output is Output.JSON else [command.file])]
    check_one_stdout(taken=command.output is Output.JSON, outputs=outputs)


def of_one_plan(options: Sequence[str]) -> InvalidInputError:
    """Return the error for options that several plans have no one answer to."""
    return InvalidInputError(
        "these options are of one plan, and several clusters are asked",
        given=", ".join(options),
        allowed="--json, --output and --csv, which hold the table",
        remedy="name one cluster with --gpus; '+' joins node groups to one",
    )


@dataclass(frozen=True, slots=True)
class _Answered:
    """A row of the table, and how the page ends where this row is the first."""

    row: ClusterRow
    next_step: NextStep


@dataclass(frozen=True, slots=True)
class _Asking:
    """A question without its cluster, and what is needed to ask it of one."""

    line: OneLine
    command: PlanCommand
    settings: Settings
    store: PlanStore | None

    def of(self, words: str, *, count: str = "") -> _Answered:
        """Return the answer on a cluster: stored, or solved now and kept. ``count`` follows the words of its progress."""
        line = replace(self.line, gpus=words)
        try:
            command = replace(self.command, request=request_of_line(line), line=line, file=None, pictures={})
            request = request_of(command, self.settings)
            say(f"planning on {words}{count}")
            text, is_stored = answer(keyed_request(request), self.store, command)
        except InvalidInputError as error:
            return _Answered(ClusterRow(words, error), NextStep("No cluster has a plan", None))
        plan = read_plan(json.loads(text))
        step = next_step(plan, request, command, self.settings, is_stored=is_stored)
        place = f"Best: {words}. {step.place}" if plan.feasible else "No cluster has a plan"
        return _Answered(ClusterRow(words, AnsweredRequest(plan, request)), replace(step, place=place))


def _asked_of_each(asking: _Asking, clusters: Sequence[str]) -> Iterator[_Answered]:
    for number, words in enumerate(clusters, start=1):
        yield asking.of(words, count=f" ({number} of {len(clusters)})")


def _asked_of_usual_nodes(asking: _Asking, untried: list[str]) -> Iterator[_Answered]:
    """Ask one node of each type, the cheapest first, then more nodes of those without a plan.

    No cluster is begun once USUAL_NODES_S have passed; those that were left are added to ``untried``.
    """
    limit = TimeLimit.after(USUAL_NODES_S)
    latest: dict[str, _Answered] = {}
    waiting = list(usual_nodes())
    for count in NODES:
        for node in waiting:
            words = f"{count}x {node.name}"
            if latest and limit():
                untried.append(words)
                continue
            latest[node.name] = asking.of(words)
        if untried:
            break
        waiting = [node for node in waiting if latest[node.name].row.may_have_a_plan_with_more]
    yield from latest.values()
