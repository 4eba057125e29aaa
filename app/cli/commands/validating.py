"""``validate``: predictions against a table of measured runs."""

from __future__ import annotations

from pathlib import Path

from meshwright.app.base.console import page_console
from meshwright.app.base.errors import EXIT_GOOD, EXIT_NO
from meshwright.app.cli.commands.exits import Output, print_json
from meshwright.app.evidence.serving.report import ServingReport
from meshwright.app.evidence.tables import TableReport, predicted_rows, table_document, validate_table
from meshwright.app.evidence.training.folds import FoldedReport
from meshwright.app.evidence.training.report import Report


def run_validate(
    path: Path,
    output: Output,
    *,
    folds: int | None = None,
    sources: Path | None = None,
    requests: Path | None = None,
    models: Path | None = None,
) -> int:
    """Predict every row of a table of training runs or of serving points, print how far off the predictions are; exit code
    1 when no row could be predicted.

    With ``folds``, device rates and link speeds are fitted to training runs of other models and clusters.
    ``sources`` says what the table's sources do not repeat in each row; rows are written to ``requests``.
    Models of serving points are looked up in the folder ``models`` before the catalogue.
    """
    report = validate_table(path, folds=folds, sources=sources, requests=requests, models=models)
    if output is Output.JSON:
        print_json(table_document(report))
    else:
        _print_page(report)
    return EXIT_GOOD if predicted_rows(report) else EXIT_NO


def _print_page(report: TableReport) -> None:
    match report:
        case Report():
            from meshwright.app.cli.pages.validation_pages import print_report

            print_report(page_console(), report)
        case FoldedReport():
            from meshwright.app.cli.pages.validation_pages import print_folded_report

            print_folded_report(page_console(), report)
        case ServingReport():
            from meshwright.app.cli.pages.validation_pages import print_serving_report

            print_serving_report(page_console(), report)
