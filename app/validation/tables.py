"""Predictions against a table of measured training runs or serving points, whichever it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.app.validation.cells import read_header
from meshwright.app.validation.fold_document import folds_document
from meshwright.app.validation.folds import FoldedReport, validate_in_folds
from meshwright.app.validation.report import Report, report_document, validate
from meshwright.app.validation.rows import read_measured_runs
from meshwright.app.validation.serving.report import ServingReport, serving_report_document, validate_serving
from meshwright.app.validation.serving.rows import is_serving_table
from meshwright.app.validation.sources import sources_of
from meshwright.app.validation.written_requests import write_requests
from meshwright.costmodels.errors import InvalidInputError

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
