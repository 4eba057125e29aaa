"""The answers to questions, as documents. What they name is looked for in the catalogue, never in files of the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.app.base.errors import DocumentError, FieldError, at_field
from meshwright.app.base.records import read_record
from meshwright.app.base.solving import predict_here
from meshwright.app.launching.exporters.launch import export_document, launch
from meshwright.app.launching.exporters.schedulers import Scheduler, job_file
from meshwright.app.launching.parts.launch_files import LaunchFiles
from meshwright.app.requests.limits import check_values
from meshwright.app.requests.model_words import model_of_catalogue
from meshwright.app.requests.options import OPTIONS, OneLine
from meshwright.app.requests.plan_documents import answer_document, read_plan, read_plan_document
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.app.service.asking import NewExplanation
from meshwright.app.service.explaining.explain import asked_of, explained, with_measured
from meshwright.app.service.explaining.explanation import Explanation, explanation_document
from meshwright.app.service.explaining.measured import read_measured
from meshwright.app.service.load import simulation_document
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.api import simulate
from meshwright.solver.problem.request import PlanRequest

Document = Mapping[str, Any]
_OWN = "model"
"""The name of a model that comes without one."""


def explanation(document: Document) -> dict[str, Any]:
    """Return the explanation of a launch command; no better plan is looked for. Raises InvalidInputError."""
    return explanation_document(explained_command(new_explanation(document)))


def explained_command(asked: NewExplanation) -> Explanation:
    """Return what a launch command does, as ``explanation``."""
    line = OneLine(
        asked.model or (_OWN if asked.config is not None else ""),
        **{name: _text(getattr(asked, name)) for name in OPTIONS if hasattr(asked, name)},
        gpus=asked.cluster,
        ttft_p95=None if asked.p95_ttft_ms is None else f"{asked.p95_ttft_ms:g}ms",
        tpot_p95=None if asked.p95_tpot_ms is None else f"{asked.p95_tpot_ms:g}ms",
    )
    own = None if asked.config is None else {"config": dict(asked.config), "name": asked.model or _OWN}
    figures = () if asked.measured is None else read_measured((asked.measured,))
    read = asked_of(
        asked.command,
        line,
        lambda request: resolve_request(request, files=NoFiles()),
        LaunchFiles(asked.files),
        lambda name: own or dict(model_of_catalogue(name)),
    )
    found = explained(read)
    return with_measured(found, read, figures) if figures else found


def new_explanation(document: Document) -> NewExplanation:
    """Return the question that a document asks; raises DocumentError for one that asks none."""
    # A command has lines, which no other text may have.
    check_values({name: value for name, value in document.items() if name not in ("command", "files")})
    return read_record(NewExplanation, dict(document), what="question")


def _text(value: float | str | None) -> Any:
    return None if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def prediction(document: Document) -> dict[str, Any]:
    """Return a given plan with its figures predicted for a request. Raises InvalidInputError."""
    request, plan = _given(document)
    return answer_document(AnsweredRequest(predict_here(request, plan), request))


def simulation(document: Document) -> dict[str, Any]:
    """Return what requests see of a given serving plan under the load of a request. Raises InvalidInputError."""
    request, plan = _given(document)
    return simulation_document(simulate(request, plan))


def _given(document: Document) -> tuple[PlanRequest, Plan]:
    strange = [name for name in document if name not in ("request", "plan")]
    missing = [name for name in ("request", "plan") if name not in document]
    if strange or missing:
        faults = [FieldError(name, "unknown field", None, "request, plan", None) for name in strange]
        faults += [FieldError(name, "missing field", None, None, None) for name in missing]
        raise DocumentError("a request and a plan are wanted", tuple(faults))
    check_values(document)
    try:
        request = resolve_request(document["request"], files=NoFiles())
    except InvalidInputError as error:
        raise at_field(error, "request") from None
    try:
        return request, read_plan(document["plan"])
    except InvalidInputError as error:
        raise at_field(error, "plan") from None


def launch_document(document: Document) -> dict[str, Any]:
    """Return what starts a stored plan: ``plan`` its document, ``launcher``, and ``scheduler`` or null."""
    answered = read_plan_document(document["plan"])
    result = launch(answered, document["launcher"])
    found = export_document(result)
    if document["scheduler"] is None:
        return found
    job = job_file(result, answered, Scheduler(document["scheduler"]))
    return found | {"job": {"file": job.name, "text": job.text, "submit": job.submit, "assumptions": list(job.assumptions)}}
