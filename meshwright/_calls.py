"""The questions: each reads what it is given, asks the solver as the command line and the service do, and wraps the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright._answers import Explanation, Launch, Plan, Simulation, Validation
from meshwright._asked import Request
from meshwright._building import read_request
from meshwright._documents import FileName, absolute, plain_object
from meshwright.app.base.solving import predict_here, solve_here
from meshwright.app.requests.files import read_document
from meshwright.app.requests.plan_documents import read_plan as read_plan_alone
from meshwright.app.requests.plan_documents import read_plan_document
from meshwright.solver import control
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.answer.plan import Plan as SolverPlan

RequestLike = Request | FileName | Mapping[str, Any]
PlanLike = Plan | FileName | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Progress:
    """A moment of a search: ``done`` of ``total`` units of work, the best objective so far and its proven bound, and a note."""

    done: int
    total: int
    best: float | None
    bound: float | None
    note: str


OnProgress = Callable[[Progress], None]


def plan(request: RequestLike, *, on_progress: OnProgress | None = None) -> Plan:
    """Return the best plan for a request, checked by the independent checker, with a proof of how good it is.

    request       as ``request`` or ``read_request`` return it; a request document; or the path of one
    on_progress   called often while the search runs; what it raises ends the search and reaches the caller

    An infeasible request has an answer too, whose ``reason`` says why. The search ends after ``search.time_limit_s`` (60 s
    unless the request says otherwise) with the best plan so far; the same request gives the same plan where it ends before.
    Raises InvalidInputError for what can't be planned.
    """
    asked = _request(request)
    listener = control.ignore_progress if on_progress is None else _listener(on_progress)
    found = solve_here(asked._request, listener)
    return Plan(AnsweredRequest(replace(found, digest=asked.digest), asked._request))


def predict(request: RequestLike, plan: PlanLike) -> Plan:
    """Return a given plan with its figures predicted for a request; infeasible where it misses memory or a target.

    The plan is one of ``plan`` or ``read_plan``, a plan document, or the path of one. Raises PlanFileError for a plan that does
    not belong to the request.
    """
    asked = _request(request)
    return Plan(AnsweredRequest(predict_here(asked._request, _plan(plan)), asked._request))


def simulate(request: RequestLike, plan: PlanLike) -> Simulation:
    """Return what requests see of a serving plan under the request's load: percentiles, and the queue over time.

    Raises WorkloadError for a training request, PlanFileError for a plan that does not belong to the request, InfeasibleError
    for one that does not fit in memory.
    """
    from meshwright.solver.api import simulate as simulated

    return Simulation(simulated(_request(request)._request, _plan(plan)))


def export(plan: PlanLike, to: str) -> Launch:
    """Return what starts a plan by a launcher: "megatron-lm", "vllm" or any other that ``meshwright export --help`` names.

    Raises ExportError for an unknown launcher or a plan that it can't start, InfeasibleError for an answer without a plan.
    """
    from meshwright.app.launching.exporters.launch import launch

    given = plan if isinstance(plan, Plan) else read_plan(plan)
    return Launch(launch(given._answered, to))


def explain(
    command: str,
    *,
    gpus: str | None = None,
    model: str = "",
    isl: int | str | None = None,
    osl: int | str | None = None,
    rate: float | str | None = None,
    concurrency: int | str | None = None,
    ttft_p95: str | None = None,
    tpot_p95: str | None = None,
    batch: int | str | None = None,
    seq: int | str | None = None,
    precision: str | None = None,
    objective: str | None = None,
    search: bool = True,
    files: Mapping[str, str] | None = None,
    measured: str | None = None,
) -> Explanation:
    """Return what a launch command does: whether it starts and fits, its figures, and what plan is better.

    command   the command, or a script around it; it is read, never run
    gpus      the devices in words, and the other options as of ``meshwright plan``: what the command does not say
    search    False does not look for a better plan
    files     texts of the configurations that the command names, by name
    measured  figures of the run, as ``840tok/s/gpu`` or ``ttft 1.2s, tpot 35ms``: the document says what explains them

    Raises InvalidInputError for a command that can't be read, and for what neither it nor an option says.
    """
    from meshwright.app.launching.parts.launch_files import LaunchFiles
    from meshwright.app.requests.files import FilesBeside, given_request
    from meshwright.app.requests.options import OneLine
    from meshwright.app.service.explaining.explain import asked_of, explained, with_better, with_measured
    from meshwright.app.service.explaining.measured import read_measured

    options = {
        "gpus": gpus,
        "isl": isl,
        "osl": osl,
        "rate": rate,
        "concurrency": concurrency,
        "ttft_p95": ttft_p95,
        "tpot_p95": tpot_p95,
        "batch": batch,
        "seq": seq,
        "precision": precision,
        "objective": objective,
    }
    line = OneLine(str(model), **{name: None if value is None else str(value) for name, value in options.items()})  # type: ignore[arg-type]
    beside = LaunchFiles({str(name): str(text) for name, text in (files or {}).items()})
    figures = () if measured is None else read_measured((str(measured),))
    asked = asked_of(str(command), line, lambda document: given_request(document, files=FilesBeside(Path())), beside)
    found = explained(asked)
    if figures:
        found = with_measured(found, asked, figures)
    return Explanation(with_better(found, solve_here) if search else found)


def validate(
    measured: FileName, *, folds: int | None = None, sources: FileName | None = None, models: FileName | None = None
) -> Validation:
    """Return predictions for every row of a CSV table of measured training runs or serving points, and their errors.

    With ``folds``, device rates and link speeds are fitted to training runs, and runs are scored that the fit has not seen.
    ``sources`` is the file that says what the table's sources do not repeat in each row; without one it is looked for beside
    the table. ``models`` is a folder of config files in which the models of serving points are looked up before the catalogue.
    Raises InvalidInputError for a file that is no such table.
    """
    from meshwright.app.evidence.tables import validate_table

    mapping = None if sources is None else Path(absolute(sources))
    folder = None if models is None else Path(absolute(models))
    return Validation(validate_table(Path(absolute(measured)), folds=folds, sources=mapping, models=folder))


def read_plan(source: FileName | Mapping[str, Any]) -> Plan:
    """Return the plan in a file that ``save`` or ``meshwright plan -o`` wrote, or of a plan document.

    Raises PlanFileError or DocumentError.
    """
    return Plan(read_plan_document(_plan_document(source)))


def _request(given: RequestLike) -> Request:
    return given if isinstance(given, Request) else read_request(given)


def _plan(given: PlanLike) -> SolverPlan:
    """The plan of what is given, whose own request is not looked at."""
    return given._answered.plan if isinstance(given, Plan) else read_plan_alone(_plan_document(given))


def _plan_document(source: FileName | Mapping[str, Any]) -> object:
    return plain_object(source, at="plan") if isinstance(source, Mapping) else read_document(absolute(source), what="plan")


def _listener(on_progress: OnProgress) -> control.OnProgress:
    def tell(progress: control.Progress) -> None:
        on_progress(Progress(progress.done, progress.total, progress.best, progress.bound, progress.note))

    return tell
