"""``check``: plans of a folder against its lock, in the formats that people and continuous integration read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from meshwright.app.base.errors import ServiceError
from meshwright.app.base.output_files import append_output, check_one_stdout, is_stdout, write_output
from meshwright.app.base.records import to_document
from meshwright.app.base.settings import Settings
from meshwright.app.cli.commands.exits import print_json, say
from meshwright.app.cli.commands.stored_plans import open_store
from meshwright.app.regression.check import check_folder, update_folder
from meshwright.app.regression.formats import FORMATS, print_check
from meshwright.app.regression.planning import LocalPlanner, Planner, available_cores
from meshwright.app.regression.report import CheckReport
from meshwright.app.service.sandbox import ChildSolver
from meshwright.costmodels.errors import InvalidInputError


class Printed(Enum):
    """The form of the text on stdout."""

    PAGE = "page"
    JSON = "json"
    ANNOTATIONS = "workflow commands of GitHub Actions"


class CheckMode(Enum):
    """The mode of the check: the lock is read, or written."""

    COMPARE = "compare"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class CheckServer:
    """A service that plans and keeps the history of checks, under the name of a project; None names the folder."""

    url: str
    project: str | None = None


@dataclass(frozen=True, slots=True)
class CheckCommand:
    """Options of ``check``: the folder, what to do, who plans, what to print, and the files to write."""

    folder: Path
    mode: CheckMode = CheckMode.COMPARE
    printed: Printed = Printed.PAGE
    junit: Path | None = None
    sarif: Path | None = None
    summary: Path | None = None
    server: CheckServer | None = None


PAGE_WIDTH = 80
"""Columns of a page that does not go to a terminal."""


def run_check(command: CheckCommand, settings: Settings) -> int:
    """Check a folder or update its lock, and report in every format asked for; the report's exit code."""
    outputs = (command.junit, command.sarif, command.summary)
    check_one_stdout(taken=command.printed is not Printed.PAGE, outputs=outputs)
    act = check_folder if command.mode is CheckMode.COMPARE else update_folder
    if command.server is None:
        report = act(command.folder, LocalPlanner(open_store(settings), ChildSolver(), available_cores(), say))
    else:
        report = _checked_by(command.server, command.folder, act, settings)
    _write_files(command, report)
    if command.printed is Printed.JSON:
        print_json(to_document(CheckReport, report))
        return report.exit_code
    if command.printed is Printed.ANNOTATIONS:
        print(FORMATS["github"](report), end="")
    to = sys.stderr if any(map(is_stdout, outputs)) else sys.stdout
    print_check(report, width=None if to.isatty() else PAGE_WIDTH, to=to)
    return report.exit_code


def server_of(url: str | None, project: str | None) -> CheckServer | None:
    """The service to ask, if one is; raises InvalidInputError for a project without one."""
    if url is None and project is not None:
        raise InvalidInputError("a service keeps the history of projects", given="--project", allowed="with --server URL")
    return None if url is None else CheckServer(url, project)


def printed(*, as_json: bool, github: bool) -> Printed:
    """Return the form to print; raises InvalidInputError when two forms are asked for at once."""
    if as_json and github:
        raise InvalidInputError("stdout holds one thing", given="--json and --github", allowed="one of them")
    if as_json:
        return Printed.JSON
    return Printed.ANNOTATIONS if github else Printed.PAGE


def _checked_by(
    server: CheckServer, folder: Path, act: Callable[[Path, Planner], CheckReport], settings: Settings
) -> CheckReport:
    """The report with plans of a service, which then keeps it."""
    from meshwright.app.regression.server import ServerPlanner

    planner = ServerPlanner(server.url, settings.api_key)
    report = act(folder, planner)
    try:
        planner.keep_report(report, project=server.project or folder.resolve().name)
    except ServiceError as error:
        # The check itself stands: whoever waits for its verdict must get it.
        say(f"warning: the service did not keep the report: {error}")
    return report


def _write_files(command: CheckCommand, report: CheckReport) -> None:
    if command.junit is not None:
        write_output(command.junit, FORMATS["junit"](report), what="JUnit report")
    if command.sarif is not None:
        write_output(command.sarif, FORMATS["sarif"](report), what="SARIF report")
    if command.summary is not None:
        # A job summary may hold what steps before wrote.
        append_output(command.summary, FORMATS["markdown"](report), what="summary")
