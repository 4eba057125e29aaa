"""Rows of a table as files that `meshwright predict` takes: a request and a plan each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshwright.app.documents.output_files import OutputFile, write_outputs
from meshwright.app.plans.documents import answer_document
from meshwright.app.requests.resolve import request_document
from meshwright.app.validation.prediction import CostedRun, costed_run
from meshwright.app.validation.rows import MeasuredRun
from meshwright.app.validation.unpredicted import NotPredictedError
from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer.plan import AnsweredRequest

PER_WRITE = 100
"""Rows whose files are written together: a model graph is up to a megabyte."""


def write_requests(rows: Sequence[MeasuredRun], folder: Path) -> int:
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


def _files_of(row: MeasuredRun, folder: Path) -> Iterator[OutputFile]:
    try:
        costed = costed_run(row.run)
    except NotPredictedError:
        return
    if not _is_whole(costed):
        return
    answered = AnsweredRequest(costed.plan(), costed.request)
    for kind, document in (("request", request_document(costed.request)), ("plan", answer_document(answered))):
        yield OutputFile(folder / f"row-{row.run.line}.{kind}.json", json.dumps(document, indent=1) + "\n")


def _is_whole(costed: CostedRun) -> bool:
    candidate = costed.decision.candidate
    return candidate.mesh.dp * candidate.microbatch * candidate.n_microbatches == costed.request.workload.global_batch
