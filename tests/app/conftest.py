"""Fixtures of the app's tests: settings over a database of one's own, and a running service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.settings import Settings
from tests.app.fakes import FakeSolver
from tests.app.service import running_service


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings over a new SQLite file."""
    return Settings(f"sqlite:///{tmp_path / 'plans.db'}")


@pytest.fixture
def solver() -> FakeSolver:
    """A solver that answers at once."""
    return FakeSolver()


@pytest.fixture
def client(settings: Settings, solver: FakeSolver) -> Iterator[httpx.Client]:
    """A client of a service that uses ``solver``."""
    with running_service(settings, solver) as client:
        yield client
