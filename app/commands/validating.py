"""``validate``: predictions against a table of measured runs."""

from __future__ import annotations

import sys
from pathlib import Path

from app.commands.exits import print_json
from app.commands.planning import PAGE_WIDTH, Output
from app.errors import EXIT_GOOD, EXIT_NO
from app.validation.report import report_document, validate


def run_validate(path: Path, output: Output) -> int:
    """Predict every row, print how far off the predictions are; exit code 1 when no row could be predicted."""
    report = validate(path)
    if output is Output.JSON:
        print_json(report_document(report))
    else:
        from rich.console import Console

        from app.render.validation_page import print_report

        print_report(Console(highlight=False, width=None if sys.stdout.isatty() else PAGE_WIDTH), report)
    return EXIT_GOOD if report.total.predicted else EXIT_NO
