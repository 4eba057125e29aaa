"""``plan`` and ``predict``: from a request file to a printed plan."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from meshwright.app.base.errors import EXIT_GOOD, EXIT_NO, StoreError
from meshwright.app.base.output_files import check_one_stdout, is_stdout, write_output
from meshwright.app.base.plan_words import rates_of
from meshwright.app.base.quoting import json_text, shell_word
from meshwright.app.base.records import to_document
from meshwright.app.base.settings import Settings
from meshwright.app.base.solving import predict_at_rate, predict_here, solve_here
from meshwright.app.cli.commands.exits import Output, print_json, say
from meshwright.app.cli.commands.stored_plans import is_readable, open_store
from meshwright.app.cli.pages.plan_page import NextStep, print_plan
from meshwright.app.pictures.files import Picture, check_pictures, write_pictures
from meshwright.app.requests.changes import as_changes, changed_request
from meshwright.app.requests.digests import KeyedRequest, keyed_request, plan_text
from meshwright.app.requests.document import RunsUse
from meshwright.app.requests.files import STDIN, FilesBeside, given_request, read_document, read_request
from meshwright.app.requests.models import NO_REGISTRY, Registry
from meshwright.app.requests.one_line import request_of_line, said_by_options
from meshwright.app.requests.options import OneLine
from meshwright.app.requests.plan_documents import answer_document, read_plan
from meshwright.app.requests.resolve import Files
from meshwright.app.store.named_calibrations import CalibrationsOf, RunsOf
from meshwright.app.store.plans import PlanStore
from meshwright.costmodels.calibration.from_runs import is_run_key
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.problem.choices import FrontierScope
from meshwright.solver.problem.launchers.table import asked_launcher
from meshwright.solver.problem.request import PlanRequest, ServingRequest

if TYPE_CHECKING:
    from meshwright.solver.serving.explain import LayoutExplanation
    from meshwright.solver.training.explain import Explanation

    Explanations = tuple[Explanation, ...] | tuple[LayoutExplanation, ...]

PAGE_WIDTH = 80
"""Columns of a page that does not go to a terminal."""

SHORT_DIGEST = len("sha256:") + 12
"""Characters of a digest that a command names: enough to be the only one so among millions of plans."""


SHORT_NAME = 48
"""Characters of a calibration's name that a note shows: its key and the start of its digest."""


class Store(Enum):
    """The way in which ``plan`` uses the plan store."""

    USE = "use"
    FRESH = "solve although a plan may be stored"
    NONE = "neither look nor keep"


@dataclass(frozen=True, slots=True)
class PlanCommand:
    """Options of ``plan``: the request's path, or its document, which may name ``files``, those of this folder unless given;
    the line that asks for it again in a shell, the file to write, the store's use, what is printed, calibrations to use, the
    operator or layout that is explained, if any, the frontier's scope where it is not the request's, files to draw the plan
    into, and fields of the request to change."""

    request: str | Mapping[str, Any]
    line: OneLine
    file: Path | None
    store: Store
    output: Output
    calibrations: tuple[str, ...] = ()
    explain: str | None = None
    frontier: FrontierScope | None = None
    runs: RunsUse = RunsUse.NEWEST
    pictures: Mapping[Picture, Path] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    files: Files = field(default_factory=lambda: FilesBeside(Path()))

    @property
    def parts(self) -> tuple[str, ...]:
        """The command that asks for the request again, an option with its value a part."""
        return (
            "meshwright plan",
            *self.line.parts,
            *(f"--set {shell_word(change)}" for change in self.changes),
            *(f"--calibration {shell_word(name)}" for name in self.calibrations),
            *(["--ignore-runs"] if self.runs is RunsUse.IGNORE else []),
            *([] if self.frontier is None else ["--frontier"]),
            *(["--no-store"] if self.store is Store.NONE else []),
        )


def run_plan(command: PlanCommand, settings: Settings) -> int:
    """Plan a request, print the plan, keep it; exit code 1 when the answer is no."""
    request = request_of(command, settings)
    _check_name(request, command.explain)
    check_pictures(request, command.pictures)
    is_json = command.output is Output.JSON
    check_one_stdout(taken=is_json, outputs=[None if is_json else command.file, *command.pictures.values()])
    key = keyed_request(request)
    store = None if command.store is Store.NONE else open_store(settings)
    text, stored = answer(key, store, command)
    document = json.loads(text)
    if command.file is not None and not (is_json and is_stdout(command.file)):
        # With --json stdout has the document already, once.
        _write_file(command.file, document)
    plan = read_plan(document)
    if plan.feasible:
        write_pictures(AnsweredRequest(plan, request), command.pictures)
    explained = _explained(request, plan, command.explain)
    if is_json:
        print_json(document | _explanation_field(explained))
    else:
        to = sys.stderr if any(map(is_stdout, [command.file, *command.pictures.values()])) else sys.stdout
        ending = next_step(plan, request, command, settings, is_stored=stored)
        print_page(plan, request, ending, explained, full=command.output is Output.FULL, to=to)
    return EXIT_GOOD if plan.feasible else EXIT_NO


def plan_of(request: PlanRequest, command: PlanCommand, settings: Settings) -> Plan:
    """The plan of a command's request, from the store or made now and kept."""
    store = None if command.store is Store.NONE else open_store(settings)
    text, _ = answer(keyed_request(request), store, command)
    return read_plan(json.loads(text))


def run_predict(
    request_path: str,
    plan_path: str,
    output: Output,
    settings: Settings,
    *,
    calibrations: tuple[str, ...] = (),
    explain: str | None = None,
    runs: RunsUse = RunsUse.NEWEST,
) -> int:
    """Predict a given plan's figures for a request, print them; exit code 1 when the plan misses a constraint. As ``run_plan``
    it rests on what measured runs told.

    ``explain`` names an operator whose sharding is explained, or a layout of a serving request.
    """
    if request_path == plan_path == STDIN:
        raise InvalidInputError("request and plan can't both come from stdin", given="-")
    registry: Registry = NO_REGISTRY if runs is RunsUse.IGNORE else RunsOf(settings, say)
    request = read_request(request_path, stored=CalibrationsOf(settings), calibrations=calibrations, registry=registry)
    _check_name(request, explain)
    return print_predicted(request, read_plan(read_document(plan_path, what="plan")), output, explain)


def print_predicted(request: PlanRequest, plan: Plan, output: Output, explain: str | None = None) -> int:
    """Print the figures that are predicted of a plan for a request, as ``run_predict``."""
    predicted = predict_here(request, plan)
    explained = _explained(request, predicted, explain)
    if output is Output.JSON:
        print_json(answer_document(AnsweredRequest(predicted, request)) | _explanation_field(explained))
    else:
        ending = NextStep("Predicted only: this plan is not stored.", None)
        print_page(predicted, request, ending, explained, full=output is Output.FULL)
    return EXIT_GOOD if predicted.feasible else EXIT_NO


def request_of(command: PlanCommand, settings: Settings, tell: Callable[[str], None] = say) -> PlanRequest:
    """The request of a command, with the calibrations and measured runs that it may rest on, of which it may ``tell``."""
    stored = CalibrationsOf(settings)
    registry: Registry
    registry = NO_REGISTRY if command.store is Store.NONE or command.runs is RunsUse.IGNORE else RunsOf(settings, tell)
    if isinstance(command.request, str):
        request = read_request(command.request, stored=stored, calibrations=command.calibrations, registry=registry)
    else:
        given, calibrations = command.request, command.calibrations
        request = given_request(given, files=command.files, stored=stored, calibrations=calibrations, registry=registry)
    request = changed_request(request, command.changes)
    if command.frontier is None:
        return request
    return replace(request, search=replace(request.search, frontier=command.frontier))


def answer(key: KeyedRequest, store: PlanStore | None, command: PlanCommand) -> tuple[str, bool]:
    """Return the text of the plan document, and whether it is in the store."""
    if store is not None and command.store is Store.USE:
        found = store.find(key.digest)
        if found is not None and is_readable(found):
            _say_if_stale(store, key.digest)
            return found, True
    plan = _solve(key.request)
    if store is None or not plan.is_decided:
        return plan_text(plan, key), False
    try:
        kept, is_new = store.keep(plan, key)
    except StoreError as error:
        # The answer has been worked out: it is worth more than the store.
        say(f"warning: the plan was not stored: {error}")
        return plan_text(plan, key), False
    return (kept if is_new else plan_text(plan, key)), True


def _say_if_stale(store: PlanStore, digest: str) -> None:
    for use in store.stale_uses(digest):
        if is_run_key(use.key):
            say("note: this plan is stale: runs on this cluster were measured since; plan without --ignore-runs to use them")
            continue
        say(
            f"note: this plan is stale: it rests on the calibration {use.used[:SHORT_NAME]}, and a newer one of {use.key} was "
            f"stored on {use.since:%Y-%m-%d}; plan with it: --calibration {use.key}"
        )


def _solve(request: PlanRequest) -> Plan:
    from meshwright.app.cli.pages.progress_bar import progress_bar

    with progress_bar(f"planning {request.model.name}") as on_progress:
        return solve_here(request, on_progress)


def _check_name(request: PlanRequest, explain: str | None) -> None:
    """Refuse to explain what isn't there before anything is solved."""
    if explain is None:
        return
    from meshwright.solver.api import require_named

    require_named(request, explain)


def _explained(request: PlanRequest, plan: Plan, explain: str | None) -> Explanations:
    """Explanations of an operator or of layouts; none where none was asked for, or a training plan has no layout."""
    if explain is None:
        return ()
    from meshwright.solver.api import explain as explain_named

    return explain_named(request, plan, explain)


def _explanation_field(explained: Explanations) -> dict[str, object]:
    return {"explanations": [to_document(type(each), each) for each in explained]} if explained else {}


def print_page(
    plan: Plan, request: PlanRequest, next_step: NextStep, explained: Explanations, *, full: bool, to: TextIO | None = None
) -> None:
    """Print the page of a plan, and explanations under it."""
    from meshwright.app.base.console import page_console

    console = page_console(to)
    print_plan(console, plan, request, next_step, full=full, at_asked=_at_asked(plan, request))
    if explained:
        from meshwright.app.cli.pages.diff_page import print_explanations

        print_explanations(console, explained)


def _at_asked(plan: Plan, request: PlanRequest) -> Predicted | None:
    """Figures of a serving plan at the rate that was asked, where its own are at the highest that it keeps up with."""
    if not plan.feasible or rates_of(plan, request) is None:
        return None
    assert isinstance(request, ServingRequest), "only serving plans have rates"
    told = predict_at_rate(request, plan)
    return told.predicted if told.feasible else None


def next_step(plan: Plan, request: PlanRequest, command: PlanCommand, settings: Settings, *, is_stored: bool) -> NextStep:
    """Return where the plan of a command is, the command that goes on from it, and those that ask for what it suggests."""
    where = []
    if is_stored:
        where.append(f"stored as {plan.digest}")
    file = None if is_stdout(command.file) else command.file
    if command.file is not None:
        where.append("written to stdout" if file is None else f"written to {file}")
    place = f"Plan {' and '.join(where) or 'neither stored nor written to a file'}"
    suggested = [suggested_command(command, request, each.set, settings).parts for each in plan.suggestions]
    if not plan.feasible:
        return NextStep(place, None, suggested)
    if file is None and not is_stored:
        return NextStep(place, " ".join((*command.parts, "-o plan.json")), suggested)
    source = plan.digest[:SHORT_DIGEST] if file is None else str(file)
    return NextStep(place, export_command(source, AnsweredRequest(plan, request)), suggested)


def suggested_command(command: PlanCommand, request: PlanRequest, values: Mapping[str, str], settings: Settings) -> PlanCommand:
    """Return the command that asks for a command's request with new values of fields, as JSON by dotted path: by the options
    that say them where these ask for that very request, else by --set."""
    kept = tuple(change for change in command.changes if change.partition("=")[0] not in values)
    by_fields = replace(command, changes=(*kept, *as_changes(values)))
    if not command.line.is_asked:
        return by_fields
    try:
        changed = changed_request(request, as_changes(values))
        line, left = said_by_options(command.line, values, changed.cluster.groups[0])
        by_options = replace(command, request=request_of_line(line), line=line, changes=(*kept, *as_changes(left)))
        is_same = request_of(by_options, settings, tell=lambda _: None) == changed
    except InvalidInputError:
        return by_fields
    return by_options if is_same else by_fields


def export_command(source: str, answered: AnsweredRequest) -> str | None:
    """Return the command that exports a plan, in a file or by its digest, to what can start it, its own launcher first; None
    where nothing can."""
    from meshwright.app.launching.exporters import first_export

    preferred = asked_launcher(answered.request)
    exported = None if preferred is None else first_export(answered.plan, answered.request, preferred)
    return None if exported is None else f"meshwright export {shell_word(source)} --to {exported.launcher}"


def _write_file(path: Path, document: object) -> None:
    write_output(path, json_text(document) + "\n", what="plan")
