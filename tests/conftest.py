"""Fixtures of the app's tests: settings over a database of one's own, and a running service.

Modules marked ``both_databases`` run over SQLite and, where a cluster can be started, over PostgreSQL.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile

import httpx
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis.internal.conjecture import providers as hypothesis_providers
from sqlalchemy import Engine, text

from meshwright.app.base.settings import Auth, Settings
from meshwright.app.store.engine import open_engine, writing
from meshwright.app.store.migrate import upgrade
from meshwright.app.store.tables import metadata
from tests.crash.databases import postgresql_cluster, postgresql_programs
from tests.support.command_line import Cli
from tests.support.compiling import compile_in_turn
from tests.support.fakes import FakeSolver
from tests.support.service import running_service

POSTGRESQL = "postgresql"

# The same examples everywhere, and no verdict on how long they take: a busy machine is no defect.
hypothesis_settings.load_profile("ci")

# Nor do they change with what else a worker has loaded: Hypothesis would mix in constants of every loaded module, and take
# seconds in each process to read them all.
hypothesis_providers._get_local_constants = lambda: hypothesis_providers._local_constants

# Tests start hundreds of processes. Where the environment says to keep no bytecode, each would compile every module anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


SKIPPED = "meshwright/skipped"
"""Where pytest's cache keeps the tests that the last run skipped, whole files among them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs again what was skipped, once what it needs is there."""
    parser.addoption("--skipped", action="store_true", help="Run only the tests that the last run without this option skipped.")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Keep the names of the tests that were skipped."""
    cache = getattr(config, "cache", None)
    if cache is not None and not config.getoption("--skipped"):
        cache.set(SKIPPED, sorted({report.nodeid for report in terminalreporter.stats.get("skipped", [])}))


def pytest_configure(config: pytest.Config) -> None:
    """Let several workers share what they compile, and collect no garbage while tests are collected: nothing of them is."""
    if hasattr(config, "workerinput"):
        compile_in_turn()
    if config.getoption("dist", "no") == "no":
        gc.disable()


def pytest_collection_finish() -> None:
    """Leave ten thousand tests and their modules out of every later search for garbage: it would walk through them all."""
    gc.enable()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of marked modules over both databases."""
    if "settings" in metafunc.fixturenames and metafunc.definition.get_closest_marker("both_databases"):
        metafunc.parametrize("settings", ["sqlite", POSTGRESQL], indirect=True)


IN_COPIES = ("tests/unit/costmodels/test_new_generation.py",)
"""Tests that run in copies of the tree, with what is compiled beside it."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow what is beyond the first cases of a test. Run tests in copies last: by then there is something compiled to
    copy. Of all, leave those that ``--skipped`` means."""
    seen: Counter[str] = Counter()
    for item in items:
        few = item.get_closest_marker("slow_beyond")
        if few is not None:
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] > few.args[0]:
                item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.nodeid.startswith(IN_COPIES))
    if config.getoption("--skipped") and config.cache is not None:
        skipped = set(config.cache.get(SKIPPED, []))
        is_meant = [bool(skipped & {item.nodeid, item.nodeid.partition("::")[0]}) for item in items]
        config.hook.pytest_deselected(items=[item for item, meant in zip(items, is_meant, strict=True) if not meant])
        items[:] = [item for item, meant in zip(items, is_meant, strict=True) if meant]


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Engine]:
    """An engine of a database with this version's schema, in a cluster of the session's own."""
    if postgresql_programs() is None:
        pytest.skip("needs PostgreSQL's programs, and root to become another user")
    # What is lost with the machine is of no use to a test.
    with postgresql_cluster("-c fsync=off") as database:
        engine = open_engine(database.url)
        upgrade(engine)
        yield engine
        engine.dispose()


@pytest.fixture(params=["sqlite", POSTGRESQL])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An engine of a database of the test's own, without tables: over SQLite, and over PostgreSQL where there is one."""
    if request.param == "sqlite":
        engine = open_engine(f"sqlite:///{tmp_path / 'plans.db'}")
        yield engine
        engine.dispose()
        return
    cluster: Engine = request.getfixturevalue("postgresql")
    # No transaction may hold these commands. The name is the test's alone: a worker runs one test at a time.
    with cluster.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CREATE DATABASE empty"))
        engine = open_engine(cluster.url.set(database="empty").render_as_string(hide_password=False))
        yield engine
        engine.dispose()
        connection.execute(text("DROP DATABASE empty WITH (FORCE)"))


def emptied(engine: Engine) -> str:
    """URL of a PostgreSQL database, without rows and without other connections."""
    tables = ", ".join(table.name for table in metadata.sorted_tables)
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with writing(engine) as connection:
        connection.execute(text(f"SELECT pg_terminate_backend(pid) {others}"))
        # Nothing but this may ever remove a calibration or a run.
        for kept in ("calibrations", "runs"):
            connection.execute(text(f"ALTER TABLE {kept} DISABLE TRIGGER USER"))
        connection.execute(text(f"TRUNCATE {tables} RESTART IDENTITY"))
        for kept in ("calibrations", "runs"):
            connection.execute(text(f"ALTER TABLE {kept} ENABLE TRIGGER USER"))
    return engine.url.render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with this version's schema and no rows, to be copied: migrations run once a worker."""
    path = tmp_path_factory.mktemp("migrated") / "plans.db"
    engine = open_engine(f"sqlite:///{path}")
    upgrade(engine)
    engine.dispose()
    return path


@pytest.fixture
def settings(request: pytest.FixtureRequest, migrated: Path, tmp_path: Path) -> Settings:
    """Settings over a new database, an SQLite file unless told, of a service that asks for no authentication."""
    if getattr(request, "param", "sqlite") == POSTGRESQL:
        return Settings(emptied(request.getfixturevalue("postgresql")), auth=Auth.OFF)
    copyfile(migrated, tmp_path / "plans.db")
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
