"""``validate``: predictions against a table of measured runs."""

from __future__ import annotations

from pathlib import Path

from meshwright.app.cli.commands.exits import print_json
from meshwright.app.cli.commands.planning import Output
from meshwright.app.errors import EXIT_GOOD, EXIT_NO
from meshwright.app.text.console import page_console
from meshwright.app.validation.cells import read_header
from meshwright.app.validation.serving.rows import is_serving_table
from meshwright.costmodels.errors import InvalidInputError


def run_validate(path: Path, output: Output, folds: int | None = None) -> int:
    """Predict every row of a table of training runs or of serving points, print how far off the predictions are; exit code
    1 when no row could be predicted.

    With ``folds``, device rates and link speeds are fitted to training runs of other models and clusters.
    """
    if is_serving_table(read_header(path)):
        if folds is not None:
            raise InvalidInputError("folds go with a table of training runs", given=path.name, remedy="leave out --folds")
        return _validate_serving(path, output)
    return _validate_training(path, output) if folds is None else _validate_in_folds(path, output, folds)


def _validate_training(path: Path, output: Output) -> int:
    from meshwright.app.validation.report import report_document, validate

    report = validate(path)
    if output is Output.JSON:
        print_json(report_document(report))
    else:
        from meshwright.app.cli.pages.validation_page import print_report

        print_report(page_console(), report)
    return EXIT_GOOD if report.total.predicted else EXIT_NO


def _validate_in_folds(path: Path, output: Output, folds: int) -> int:
    from meshwright.app.validation.fold_document import folds_document
    from meshwright.app.validation.folds import validate_in_folds

    report = validate_in_folds(path, folds=folds)
    if output is Output.JSON:
        print_json(folds_document(report))
    else:
        from meshwright.app.cli.pages.folds_page import print_folded_report

        print_folded_report(page_console(), report)
    return EXIT_GOOD if report.held_out.total.predicted else EXIT_NO


def _validate_serving(path: Path, output: Output) -> int:
    from meshwright.app.validation.serving.report import serving_report_document, validate_serving

    report = validate_serving(path)
    if output is Output.JSON:
        print_json(serving_report_document(report))
    else:
        from meshwright.app.cli.pages.serving_validation_page import print_serving_report

        print_serving_report(page_console(), report)
    return EXIT_GOOD if report.total.predicted else EXIT_NO
