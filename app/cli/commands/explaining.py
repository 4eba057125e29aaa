"""``explain``: from the words of a launch command, or a file with one, to a page or a document."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.app.base.documents import read_bounded
from meshwright.app.base.errors import EXIT_GOOD, EXIT_NO
from meshwright.app.base.settings import Settings
from meshwright.app.cli.commands.exits import Output, print_json
from meshwright.app.launching.parts.launch_files import NO_FILES, READ_ENDS, LaunchFiles
from meshwright.app.requests.files import FilesBeside, given_request
from meshwright.app.requests.options import OneLine
from meshwright.app.service.explaining.explain import EXAMPLE, asked_of, explained, with_better, with_measured
from meshwright.app.service.explaining.explanation import Verdict
from meshwright.app.service.explaining.measured import read_measured
from meshwright.app.store.named_calibrations import CalibrationsOf
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import PlanRequest

LONGEST_FILE_BYTES = 1_000_000
"""Bytes of a file with a launch command that are read."""
MOST_FILES = 100
"""Files of a folder that are read."""


@dataclass(frozen=True, slots=True)
class ExplainCommand:
    """Options of ``explain``: the words of a launch command or one path, the options of a request in one line, files that
    the command reads, and figures that were measured."""

    words: Sequence[str]
    line: OneLine
    output: Output
    search: bool
    beside: Sequence[Path] = ()
    measured: Sequence[str] = ()


def run_explain(command: ExplainCommand, settings: Settings) -> int:
    """Explain a launch command, print what it does; exit code 1 when it does not start, fit or keep its targets."""

    def resolve(document: dict[str, object]) -> PlanRequest:
        return given_request(document, files=FilesBeside(Path()), stored=CalibrationsOf(settings))

    text, files = _given(command.words)
    files = files.beside(_texts(command.beside))
    figures = read_measured(command.measured) if command.measured else ()
    asked = asked_of(text, command.line, resolve, files)
    found = explained(asked)
    if figures:
        found = with_measured(found, asked, figures)
    if command.search:
        found = with_better(found, _solve)
    if command.output is Output.JSON:
        from meshwright.app.service.explaining.explanation import explanation_document

        print_json(explanation_document(found))
    else:
        from meshwright.app.base.console import page_console
        from meshwright.app.cli.pages.command_page import print_explanation

        print_explanation(page_console(), found)
    return EXIT_GOOD if found.verdict is Verdict.RUNS else EXIT_NO


def _solve(request: PlanRequest) -> Plan:
    from meshwright.app.base.solving import solve_here
    from meshwright.app.cli.pages.progress_bar import progress_bar

    with progress_bar(f"planning {request.model.name}") as on_progress:
        return solve_here(request, on_progress)


def _given(words: Sequence[str]) -> tuple[str, LaunchFiles]:
    """The text of a command, and the files beside it: of several words the words themselves, of one a file's or a folder's."""
    if not words:
        raise InvalidInputError(
            "the launch command is missing", allowed="a file, or -- and the command", remedy=f"as in: {EXAMPLE}"
        )
    if len(words) > 1:
        return shlex.join(words), NO_FILES
    path = Path(words[0])
    try:
        if path.is_dir():
            files = _files_of(path)
            return files.main(), files
        return _text(path), NO_FILES
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInputError(
            f"the file can't be read: {reason}", given=words[0], remedy=f"or give a command behind --, as in: {EXAMPLE}"
        ) from None


def _files_of(folder: Path) -> LaunchFiles:
    """The scripts and configurations in a folder, not those in folders of it."""
    paths = sorted(path for path in folder.iterdir() if path.name.endswith(READ_ENDS) and path.is_file())
    if len(paths) > MOST_FILES:
        raise InvalidInputError("the folder has too many files", given=f"{len(paths)}", allowed=f"at most {MOST_FILES}")
    return LaunchFiles({path.name: _text(path) for path in paths})


def _texts(paths: Sequence[Path]) -> dict[str, str]:
    """The texts of files that were given beside a command, by their names as they were given."""
    if len(paths) > MOST_FILES:
        raise InvalidInputError("too many files are given", given=f"{len(paths)}", allowed=f"at most {MOST_FILES}")
    try:
        return {str(path): _text(path) for path in paths}
    except OSError as error:
        raise InvalidInputError(f"a file can't be read: {error.strerror}", given=str(error.filename)) from None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return read_bounded(file, limit=LONGEST_FILE_BYTES, what="launch command").decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInputError("the launch command is not text in UTF-8", given=str(path)) from None
