"""The plan store's tables and repository, on SQLite and, where there is one, on PostgreSQL."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect, text

from meshwright.app.base.errors import StoreError
from meshwright.app.base.settings import SettingError
from meshwright.app.store.engine import open_engine, reading, writing
from meshwright.app.store.migrate import HEAD_REVISION, current_revision, downgrade, ensure_ready, is_at_head, upgrade
from meshwright.app.store.plans import PlanFilter, PlanRepository, StoredPlan
from meshwright.app.store.tables import metadata
from tests.integration.db import ROW, numbered


@pytest.fixture
def engine(empty: Engine) -> Engine:
    """An engine of a migrated database."""
    upgrade(empty)
    return empty


@pytest.fixture
def plans(engine: Engine) -> PlanRepository:
    return PlanRepository(engine)


def test_migrations_go_up_and_down(empty: Engine) -> None:
    assert current_revision(empty) is None
    upgrade(empty)
    assert is_at_head(empty)
    downgrade(empty, "base")
    assert current_revision(empty) is None
    assert inspect(empty).get_table_names() == ["alembic_version"]
    upgrade(empty)
    assert is_at_head(empty)


def test_head_revision_is_what_alembic_says() -> None:
    from alembic.script import ScriptDirectory

    assert ScriptDirectory("migrations").get_heads() == [HEAD_REVISION]


def test_migrated_tables_are_those_of_the_code(engine: Engine) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with reading(engine) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_plan_comes_back_as_it_was(plans: PlanRepository) -> None:
    assert plans.add(ROW) == (ROW, True)
    assert plans.find(ROW.digest) == ROW


def test_first_plan_of_a_digest_stays(plans: PlanRepository) -> None:
    plans.add(ROW)
    assert plans.add(replace(ROW, plan="{}", devices=9)) == (ROW, False)
    assert plans.find(ROW.digest) == ROW


def test_many_writers_of_one_digest_make_one_row(plans: PlanRepository) -> None:
    answers: list[tuple[StoredPlan, bool]] = []
    threads = [threading.Thread(target=lambda n=n: answers.append(plans.add(replace(ROW, plan=f"{n}")))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(is_new for _, is_new in answers) == 1
    assert len({row.plan for row, _ in answers}) == 1
    assert len(plans.page(PlanFilter(), before=None, limit=10)) == 1


def test_pages_are_newest_first_and_complete(plans: PlanRepository) -> None:
    for number in range(5):
        plans.add(numbered(number))
    seen: list[str] = []
    before = None
    while page := plans.page(PlanFilter(), before=before, limit=2):
        seen += [item.digest for item in page]
        before = page[-1].id
    assert seen == [numbered(n).digest for n in (4, 3, 2, 1, 0)]


def test_filters(plans: PlanRepository) -> None:
    plans.add(numbered(1, model="a"))
    plans.add(numbered(2, model="b", feasible=False))
    plans.add(numbered(3, model="b"))

    def found(wanted: PlanFilter) -> list[int]:
        return [int(item.digest[7:], 16) for item in plans.page(wanted, before=None, limit=9)]

    assert found(PlanFilter(model="b")) == [3, 2]
    assert found(PlanFilter(feasible=False)) == [2]
    assert found(PlanFilter(model="a", feasible=False)) == []


def test_digest_is_found_by_its_start(plans: PlanRepository) -> None:
    plans.add(ROW)
    plans.add(numbered(1))
    assert plans.find_by_prefix("sha256:aaaa", limit=2) == (ROW.digest,)
    assert plans.find_by_prefix("sha256:", limit=2) == (numbered(1).digest, ROW.digest)
    assert plans.find_by_prefix("sha256:f", limit=2) == ()


def test_failed_write_leaves_nothing(engine: Engine, plans: PlanRepository) -> None:
    def write_and_fail() -> None:
        with writing(engine) as connection:
            connection.execute(text("DELETE FROM plans"))
            raise KeyError("stop")

    plans.add(ROW)
    with pytest.raises(KeyError):
        write_and_fail()
    assert plans.find(ROW.digest) == ROW


def test_an_sqlite_store_is_made_where_it_is_asked_for(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'deep' / 'er' / 'plans.db'}")
    ensure_ready(engine)
    with reading(engine) as connection:
        pragmas = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("journal_mode", "foreign_keys")}
    engine.dispose()
    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1}


def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'plans.db'}")
    upgrade(engine)
    with writing(engine) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="newer version"):
        ensure_ready(engine)
    assert current_revision(engine) == "9999"
    engine.dispose()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "plans.db").write_text("not a database at all, but long enough to look like one" * 40)
    engine = open_engine(f"sqlite:///{tmp_path / 'plans.db'}")
    with pytest.raises(StoreError, match="not a database"):
        current_revision(engine)
    engine.dispose()


def test_a_locked_store_answers_readers(tmp_path: Path) -> None:
    path = tmp_path / "plans.db"
    engine = open_engine(f"sqlite:///{path}")
    upgrade(engine)
    plans = PlanRepository(engine)
    plans.add(ROW)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert plans.find(ROW.digest) == ROW
    other.close()
    engine.dispose()


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://h/d", "oracle+x://h", "http://localhost/x"])
def test_other_databases_are_refused_without_showing_the_url(url: str) -> None:
    with pytest.raises(SettingError, match="sqlite:///FILE or postgresql") as caught:
        open_engine(url)
    assert not url or url not in str(caught.value)


def test_an_unreachable_postgresql_is_a_store_error() -> None:
    engine = open_engine("postgresql://nobody:secret@127.0.0.1:1/none")
    with pytest.raises(StoreError) as caught:
        current_revision(engine)
    assert "secret" not in str(caught.value)


def test_plans_of_the_last_release_survive_the_way_up_and_down(empty: Engine) -> None:
    upgrade(empty, "0001")
    columns = "digest, created_at, model, kind, feasible, status, devices, tokens_per_s, plan, request"
    values = ":digest, :created_at, :model, :kind, :feasible, :status, :devices, :tokens_per_s, :plan, :request"
    with writing(empty) as connection:
        connection.execute(text(f"INSERT INTO plans ({columns}) VALUES ({values})"), [asdict(ROW), asdict(numbered(1))])
        before = connection.execute(text(f"SELECT id, {columns} FROM plans ORDER BY id")).all()
    upgrade(empty)
    assert PlanRepository(empty).find(ROW.digest) == ROW
    PlanRepository(empty, "other").add(ROW)
    downgrade(empty, "0001")
    with reading(empty) as connection:
        assert connection.execute(text(f"SELECT id, {columns} FROM plans ORDER BY id")).all() == before


def test_each_tenant_has_plans_of_its_own(engine: Engine) -> None:
    ours, theirs = PlanRepository(engine, "ours"), PlanRepository(engine, "theirs")
    other = replace(ROW, plan="{}")
    assert ours.add(ROW) == (ROW, True)
    assert theirs.find(ROW.digest) is None
    assert theirs.find_by_prefix("sha256:", limit=9) == ()
    assert theirs.page(PlanFilter(), before=None, limit=9) == ()
    assert theirs.add(other) == (other, True)
    assert ours.find(ROW.digest) == ROW
