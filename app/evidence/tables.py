"""Predictions against a table of measured training runs or serving points, whichever it holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.app.base.output_files import OutputFile, write_outputs
from meshwright.app.evidence.serving.report import ServingReport, serving_report_document, validate_serving
from meshwright.app.evidence.serving.rows import is_serving_table
from meshwright.app.evidence.training.cells import NotPredictedError, of_one_row, read_header
from meshwright.app.evidence.training.folds import FoldedReport, folds_document, validate_in_folds
from meshwright.app.evidence.training.prediction import CostedRun, costed_run
from meshwright.app.evidence.training.report import Report, report_document, validate
from meshwright.app.evidence.training.rows import ValidationRun, read_measured_runs
from meshwright.app.evidence.training.sources import sources_of
from meshwright.app.requests.plan_documents import answer_document
from meshwright.app.requests.resolve import request_document
from meshwright.costmodels.errors import InvalidInputError, PlanFileError
from meshwright.solver.answer.plan import AnsweredRequest

TableReport = Report | FoldedReport | ServingReport


def validate_table(
    path: Path,
    *,
    folds: int | None = None,
    sources: Path | None = None,
    requests: Path | None = None,
    models: Path | None = None,
) -> TableReport:
    """Predict every row of a table of training runs or of serving points, and return how far off the predictions are.

    With ``folds``, device rates and link speeds are fitted to training runs of other models and clusters. Raises
    InvalidInputError for a file that is no such table, and for folds of serving points.

    ``sources`` is the file that says what the table's sources do not repeat in each row; without one it is looked for beside
    the table. ``requests`` is a folder to which each row is written as a request and a plan. ``models`` is a folder of config
    files in which the models of serving points are looked up before the catalogue.
    """
    if is_serving_table(read_header(path)):
        for name, given in (("folds", folds), ("sources", sources), ("requests", requests)):
            if given is not None:
                raise InvalidInputError(f"{name} go with a table of training runs", given=path.name, remedy=f"leave {name} out")
        if models is not None and not models.is_dir():
            raise InvalidInputError(
                "there is no such folder of models", given=str(models), allowed="a folder of config.json files"
            )
        return validate_serving(path, models)
    if models is not None:
        raise InvalidInputError(
            "models go with a table of serving points",
            given=path.name,
            remedy="say models of training runs in the mapping file",
        )
    mapping = sources_of(path, sources)
    if requests is not None:
        write_requests(read_measured_runs(path, mapping), requests)
    return validate(path, mapping) if folds is None else validate_in_folds(path, folds=folds, sources=mapping)


def predicted_rows(report: TableReport) -> int:
    """Return the number of rows that could be predicted."""
    return report.held_out.total.predicted if isinstance(report, FoldedReport) else report.total.predicted


def table_document(report: TableReport) -> dict[str, Any]:
    """Return the report as a JSON document."""
    match report:
        case Report():
            return report_document(report)
        case FoldedReport():
            return folds_document(report)
        case ServingReport():
            return serving_report_document(report)


# Rows of a table as files that `meshwright predict` takes: a request and a plan each.

PER_WRITE = 100
"""Rows whose files are written together: a model graph is up to a megabyte."""


def write_requests(rows: Sequence[ValidationRun], folder: Path) -> int:
    """Write "row-<line>.request.json" and "row-<line>.plan.json" of each predicted row; return how many rows were written.

    Rows whose last micro-batch is a smaller one have no plan document, and are left out. Raises PlanFileError for a folder
    that can't be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise PlanFileError(
            f"requests can't be written there: {error}", given=str(folder), remedy="name a folder that can be made"
        ) from None
    written = 0
    for start in range(0, len(rows), PER_WRITE):
        files = [file for row in rows[start : start + PER_WRITE] for file in _files_of(row, folder)]
        write_outputs(files, what="requests")
        written += len(files) // 2
    return written


def _files_of(row: ValidationRun, folder: Path) -> Sequence[OutputFile]:
    try:
        with of_one_row():
            costed = costed_run(row.run)
            if not _is_whole(costed):
                return ()
            answered = AnsweredRequest(costed.plan(), costed.request)
            documents = {"request": request_document(costed.request), "plan": answer_document(answered)}
    except NotPredictedError:
        return ()
    return [
        OutputFile(folder / f"row-{row.run.line}.{kind}.json", json.dumps(document, indent=1) + "\n")
        for kind, document in documents.items()
    ]


def _is_whole(costed: CostedRun) -> bool:
    candidate = costed.decision.candidate
    return candidate.mesh.dp * candidate.microbatch * candidate.n_microbatches == costed.request.workload.global_batch
