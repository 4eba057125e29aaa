"""Fixtures of the app's tests: settings over a database of one's own, and a running service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.settings import Auth, Settings
from tests.app.command_line import Cli
from tests.app.fakes import FakeSolver
from tests.app.service import running_service


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings over a new SQLite file, of a service that asks for no authentication."""
    return Settings(f"sqlite:///{tmp_path / 'plans.db'}", auth=Auth.OFF)


@pytest.fixture
def solver() -> FakeSolver:
    """A solver that answers at once."""
    return FakeSolver()


@pytest.fixture
def client(settings: Settings, solver: FakeSolver) -> Iterator[httpx.Client]:
    """A client of a service that uses ``solver``."""
    with running_service(settings, solver) as client:
        yield client


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """The command line with a plan store of its own, in a terminal 80 columns wide."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("MESHWRIGHT_DATABASE_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return Cli(monkeypatch, capsys, tmp_path)
