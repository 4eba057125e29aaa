"""The files that a plan is drawn into, by kind; each kind has one writer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from pathlib import Path

from meshwright.app.base.output_files import OutputFile, write_outputs
from meshwright.app.base.quoting import csv_text
from meshwright.app.pictures.drawings import frontier_drawing, memory_drawing, timeline_drawing
from meshwright.app.pictures.rank_map import map_drawing
from meshwright.app.pictures.step_timeline import trace_text
from meshwright.app.requests.plan_documents import answer_document, flat, stage_rows
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.problem.request import PlanRequest


class Picture(StrEnum):
    """The kinds of files."""

    HTML = "html"
    TRACE = "trace"
    TIMELINE = "svg-timeline"
    MEMORY = "svg-memory"
    FRONTIER = "svg-frontier"
    MAP = "svg-map"
    CSV = "csv"


OF_A_STEP = frozenset({Picture.TRACE, Picture.TIMELINE})
DRAWN_OF: Mapping[str, frozenset[Picture]] = {"training": frozenset(Picture), "serving": frozenset(Picture) - OF_A_STEP}
"""Kinds of files that plans of each kind of workload have."""


def stages_csv(answered: AnsweredRequest) -> str:
    """Return the stages of a plan as a table in CSV, one a row."""
    return csv_text(flat(row) for row in stage_rows(answer_document(answered)))


def _page(answered: AnsweredRequest) -> str:
    # Templates are loaded by who wants a page: commands have this module for its options.
    from meshwright.app.pictures.page import plan_page

    return plan_page(answered)


_WRITERS: Mapping[Picture, Callable[[AnsweredRequest], str]] = {
    Picture.HTML: _page,
    Picture.TRACE: trace_text,
    Picture.TIMELINE: timeline_drawing,
    Picture.MEMORY: memory_drawing,
    Picture.FRONTIER: frontier_drawing,
    Picture.MAP: map_drawing,
    Picture.CSV: stages_csv,
}


def named(files: Mapping[Picture, Path | None]) -> dict[Picture, Path]:
    """Return the files that have a name."""
    return {kind: path for kind, path in files.items() if path is not None}


def check_pictures(request: PlanRequest, files: Collection[Picture]) -> None:
    """Refuse a picture that no answer to the request has; raises InvalidInputError. Commands ask before they solve."""
    wrong = [kind.value for kind in files if kind not in DRAWN_OF[request.workload.kind]]
    if wrong:
        raise InvalidInputError("serving plans have no pipeline timeline", given=wrong[0], allowed="a training request")


def write_pictures(answered: AnsweredRequest, files: Mapping[Picture, Path]) -> None:
    """Write a plan into files, all of them or none; raises InvalidInputError where a plan has no such picture."""
    write_outputs([OutputFile(path, drawn(answered, kind)) for kind, path in files.items()], what="picture")


def drawn(answered: AnsweredRequest, kind: Picture) -> str:
    """Return the text of a plan's picture; raises InvalidInputError where it has none of that kind."""
    return _WRITERS[kind](answered)
