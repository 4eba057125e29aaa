"""A pytest plugin: ``pytest --meshwright plans/`` makes every request under ``plans/`` a test.

A folder is planned once in a session, all its requests at a time. The lock of a request is the nearest one above it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from meshwright.app.regression.report import CheckReport, PlanCheck

REQUEST_PATTERN = "*.plan.yaml"
LOCK_NAME = "plans.lock.json"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--meshwright``."""
    group = parser.getgroup("meshwright", "plans compared with their lock")
    group.addoption("--meshwright", action="store_true", help="test every *.plan.yaml against plans.lock.json")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Requests become a test each, and so do entries of a lock whose request is gone."""
    if not parent.config.getoption("--meshwright"):
        return None
    if file_path.match(REQUEST_PATTERN):
        return RequestFile.from_parent(parent, path=file_path)
    return LockFile.from_parent(parent, path=file_path) if file_path.name == LOCK_NAME else None


class PlanRegressionError(Exception):
    """A plan that its lock does not let pass; the text is the assertion message."""


class RequestFile(pytest.File):
    """A request."""

    def collect(self) -> Iterator[pytest.Item]:
        """One test."""
        folder = _lock_folder(self.path, self.config.rootpath)
        yield PlanItem.from_parent(self, name="plan", folder=folder, plan_name=self.path.relative_to(folder).as_posix())


class LockFile(pytest.File):
    """A lock. Requests are tests of their own; those that are gone are tests of the lock, and so is a lock that is bad."""

    def collect(self) -> Iterator[pytest.Item]:
        """One test for each entry without a request file."""
        from meshwright.app.regression.lock import LockError, read_lock

        folder = self.path.parent
        try:
            gone = [name for name in read_lock(self.path).plans if not (folder / name).is_file()]
        except LockError:
            gone = [LOCK_NAME]
        for name in sorted(gone):
            yield PlanItem.from_parent(self, name=name, folder=folder, plan_name=name)


class PlanItem(pytest.Item):
    """The plan of one request against its lock."""

    def __init__(self, *, folder: Path, plan_name: str, **kwargs: Any):
        super().__init__(**kwargs)
        self._folder, self._plan_name = folder, plan_name

    def runtest(self) -> None:
        """Raise PlanRegressionError with message, cause and fix of every error."""
        plan = _plan_of(_report(self.config, self._folder), self._plan_name)
        from meshwright.app.base.quoting import terminal_line

        if not plan.passed:
            raise PlanRegressionError("\n".join(terminal_line(str(f)) for f in plan.findings if f.severity.value == "error"))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The message alone: no traceback helps here."""
        if isinstance(excinfo.value, PlanRegressionError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the request is."""
        return self.path, None, f"plan of {self._plan_name!r}"


_reports = pytest.StashKey[dict[Path, "CheckReport"]]()


def _report(config: pytest.Config, folder: Path) -> CheckReport:
    """The report of a folder, made once in a session."""
    from meshwright.app.base.settings import read_settings
    from meshwright.app.cli.commands.exits import say
    from meshwright.app.cli.commands.stored_plans import open_store
    from meshwright.app.regression.check import check_folder
    from meshwright.app.regression.planning import LocalPlanner, available_cores
    from meshwright.app.service.sandbox import ChildSolver

    reports = config.stash.setdefault(_reports, {})
    if folder not in reports:
        planner = LocalPlanner(open_store(read_settings()), ChildSolver(), available_cores(), say)
        reports[folder] = check_folder(folder, planner)
    return reports[folder]


def _plan_of(report: CheckReport, name: str) -> PlanCheck:
    """The plan of that name, or what kept the whole folder from being checked."""
    return next((plan for plan in report.plans if plan.name == name), report.plans[0])


def _lock_folder(path: Path, root: Path) -> Path:
    """The folder of the nearest lock above a request, up to pytest's root; the request's own when there is none."""
    for folder in path.parents:
        if (folder / LOCK_NAME).is_file():
            return folder
        if folder == root:
            break
    return path.parent
