"""A project with a lock, its plans made once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.regression.project import Project
from tests.support.command_line import Cli


@pytest.fixture(scope="session")
def plan_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One plan store for all tests: the same request need not be solved again."""
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/plans.db"


@pytest.fixture
def project(cli: Cli, plan_store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Project:
    """A folder whose lock holds its plan."""
    monkeypatch.setenv("MESHWRIGHT_DATABASE_URL", plan_store)
    (tmp_path / ".git").mkdir()
    made = Project(cli)
    made.update()
    return made
