"""Prints how far off the published tables of measured runs are without their mapping, and with source and notes erased too.

Run from the root of the repository: python -m benchmarks.unmapped_accuracy; a minute.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.accuracy import SOURCES, TABLES
from meshwright.app.evidence.training.report import Report, report_of
from meshwright.app.evidence.training.rows import read_measured_runs
from meshwright.app.evidence.training.scores import Errors, score_run
from meshwright.app.evidence.training.sources import NO_SOURCES, Sources, sources_of

TELLING = ("source", "notes")
"""Columns in which these tables name frameworks and say what was measured."""


def scored(tables: tuple[Path, ...], sources: Sources) -> Report:
    """The report of all rows of some tables."""
    return report_of((score_run(row) for table in tables for row in read_measured_runs(table, sources)), file="all tables")


def erased(tables: tuple[Path, ...], folder: Path) -> Iterator[Path]:
    """Write the tables without the words of `TELLING` to a folder, and return where they are."""
    for table in tables:
        with table.open(newline="", encoding="utf-8") as given, (folder / table.name).open("w", newline="") as written:
            rows = csv.DictReader(given)
            writer = csv.DictWriter(written, rows.fieldnames or ())
            writer.writeheader()
            writer.writerows(row | dict.fromkeys(TELLING, "") for row in rows)
        yield folder / table.name


def main() -> None:
    """Print a line a source, and the mean over sources."""
    with TemporaryDirectory() as folder:
        without_words = scored(tuple(erased(TABLES, Path(folder))), NO_SOURCES)
    reports = (scored(TABLES, sources_of(TABLES[0], SOURCES)), scored(TABLES, NO_SOURCES), without_words)
    print("| source | time: mapped | unmapped | erased | memory: mapped | unmapped | erased |\n|---|" + "---:|" * 6)
    for scores in zip(*(report.sources for report in reports), strict=True):
        if any(score.time or score.memory for score in scores):
            cells = [*(_cell(score.time) for score in scores), *(_cell(score.memory) for score in scores)]
            print(f"| {scores[0].source} | {' | '.join(cells)} |")
    means = [report.mean_time_mape for report in reports] + [report.mean_memory_mape for report in reports]
    print(f"| mean over sources | {' | '.join('-' if mean is None else f'{mean:.1%}' for mean in means)} |")


def _cell(errors: Errors | None) -> str:
    return "-" if errors is None else f"{errors.mape:.1%} ({errors.bias:+.0%})"


if __name__ == "__main__":
    main()
