"""The commands of docs/operations.md back a database up while it is written to, and bring every row back byte for byte."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select, text

from meshwright.app.service.engine import QueueClient, WorkflowState, migrate_queue
from meshwright.app.service.planning import submit
from meshwright.app.store.calibrations import CalibrationRepository, NewCalibration
from meshwright.app.store.engine import open_engine, reading, writing
from meshwright.app.store.jobs import JobKind, NewJob
from meshwright.app.store.migrate import upgrade
from meshwright.app.store.plans import PlanRepository, StoredPlan
from meshwright.app.store.tables import metadata
from tests.crash.databases import postgresql_cluster, postgresql_programs

MANUAL = Path(__file__).parents[2] / "docs" / "operations.md"
TENANT = "default"
NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
PLANS = 50


def commands() -> dict[str, str]:
    """The shell blocks of the section, by the words before them: "SQLite, back up" and so on."""
    section = MANUAL.read_text().split("## Backup and restore")[1].split("\n## ")[0]
    pattern = r"^((?:SQLite|PostgreSQL), (?:back up|restore))(?:(?!```).)*```sh\n(.*?)```"
    found = re.findall(pattern, section, re.MULTILINE | re.DOTALL)
    return dict(found)


def run(command: str, **variables: str) -> None:
    done = subprocess.run(["sh", "-euc", command], env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def plan(number: int) -> StoredPlan:
    return StoredPlan(
        digest=f"sha256:{number:064x}",
        created_at=NOW,
        model="Größe 模型",
        kind="training",
        feasible=True,
        status="optimal",
        devices=8,
        tokens_per_s=1e5 / (number + 3),
        plan='{"schema":"meshwright.plan/1","note":"ü\\u0007\\n ' + "x" * 100 * number + f'","objective":{0.1 * number!r}}}',
        request="{}",
    )


def migrated(url: str) -> Engine:
    """An engine of the database at a URL, with all tables, the queue's too."""
    engine = open_engine(url)
    upgrade(engine)
    migrate_queue(url)
    return engine


def fill(engine: Engine) -> None:
    """Plans, a calibration and a job that waits."""
    plans = PlanRepository(engine, TENANT)
    for number in range(PLANS):
        plans.add(plan(number))
    new = NewCalibration("h100_sxm@sha256:ab", "h100_sxm", NOW, "made up", 3, "sha256:cd", '{"rate":0.30000000000000004}')
    CalibrationRepository(engine, TENANT).add(new)
    job = NewJob("job-1", "test", JobKind.PLAN, "sha256:" + "f" * 64, 3, "model", "{}")
    queue = QueueClient(engine)
    with writing(engine) as connection:
        submit(engine, queue, connection, TENANT, job)
    queue.close()


def everything(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    with reading(engine) as connection:
        tables = {table.name: connection.execute(select(table)).all() for table in metadata.sorted_tables}
    return {name: sorted(map(tuple, rows), key=repr) for name, rows in tables.items()}


def check_restored(url: str, before: dict[str, list[tuple[Any, ...]]]) -> None:
    """Everything is as it was, and the database can be used."""
    engine = open_engine(url)
    assert everything(engine) == before
    plans = PlanRepository(engine, TENANT)
    assert [plans.find(plan(number).digest) for number in range(PLANS)] == [plan(number) for number in range(PLANS)]
    assert plans.add(plan(PLANS + 1))[1]
    queue = QueueClient(engine)
    assert queue.states(["job-1"]) == {"job-1": WorkflowState.WAITING}
    queue.close()
    engine.dispose()


def test_sqlite(tmp_path: Path) -> None:
    file, backup = tmp_path / "plans.db", tmp_path / "backup.db"
    url = f"sqlite:///{file}"
    engine = migrated(url)
    fill(engine)
    before = everything(engine)
    names = {"DATABASE_FILE": str(file), "BACKUP_FILE": str(backup)}
    with writing(engine) as connection:
        PlanRepository(engine, TENANT).add_with(connection, replace(plan(0), digest="sha256:" + "e" * 64))
        run(commands()["SQLite, back up"], **names)
    PlanRepository(engine, TENANT).add(replace(plan(0), digest="sha256:" + "d" * 64))
    assert everything(engine) != before
    engine.dispose()
    # What a machine that failed leaves beside the file.
    Path(f"{file}-wal").write_bytes(b"remains of another log")
    run(commands()["SQLite, restore"], **names)
    check_restored(url, before)


def test_postgresql(tmp_path: Path) -> None:
    programs = postgresql_programs()
    if programs is None:
        pytest.skip("needs PostgreSQL's programs, and root to become another user")
    with postgresql_cluster() as database:
        engine = migrated(database.url)
        fill(engine)
        before = everything(engine)
        bare = database.url.replace("+psycopg", "")
        names = {"PATH": f"{programs}:{os.environ['PATH']}", "BACKUP_FILE": str(tmp_path / "backup.dump")}
        with writing(engine) as connection:
            PlanRepository(engine, TENANT).add_with(connection, replace(plan(0), digest="sha256:" + "e" * 64))
            run(commands()["PostgreSQL, back up"], DATABASE=bare, **names)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("CREATE DATABASE restored"))
        engine.dispose()
        run(commands()["PostgreSQL, restore"], EMPTY_DATABASE=bare.replace("/meshwright", "/restored"), **names)
        check_restored(database.url.replace("/meshwright", "/restored"), before)
