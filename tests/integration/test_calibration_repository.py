"""Calibrations in the database: only added, numbered by device; plans that rest on older ones are found."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from meshwright.app.base.errors import StoreError
from meshwright.app.store.calibrations import CalibrationRepository, NewCalibration
from meshwright.app.store.engine import open_engine, writing
from meshwright.app.store.migrate import upgrade
from meshwright.app.store.plans import PlanRepository, StoredPlan
from tests.integration.db import ROW, numbered

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def calibration(content: int, *, key: str = "h100_sxm", at: datetime = NOON) -> NewCalibration:
    return NewCalibration(
        name=f"{key}@sha256:{content:064x}",
        key=key,
        created_at=at,
        source="a table",
        samples=100,
        samples_digest=f"sha256:{0:064x}",
        document=json.dumps({"content": content}),
    )


def resting_on(*calibrations: str) -> str:
    """JSON of a request whose node groups' devices name these calibrations."""
    groups = [{"node": {"device": {"calibration": name}}} for name in calibrations]
    return json.dumps({"cluster": {"groups": groups}})


@pytest.fixture
def engine(empty: Engine) -> Engine:
    """An engine of a migrated database."""
    upgrade(empty)
    return empty


@pytest.fixture
def store(engine: Engine) -> CalibrationRepository:
    return CalibrationRepository(engine)


def test_versions_count_within_a_device(store: CalibrationRepository) -> None:
    numbers = [store.add(calibration(n, key=key))[0].version for n, key in enumerate(("a", "b", "a", "a", "b"))]
    assert numbers == [1, 1, 2, 3, 2]
    assert [(row.key, row.version) for row in store.list(limit=9)] == [("b", 2), ("a", 3), ("a", 2), ("b", 1), ("a", 1)]
    newest = store.newest("a")
    assert newest is not None
    assert newest.version == 3
    assert store.newest("c") is None


def test_a_calibration_comes_back_as_it_was(store: CalibrationRepository) -> None:
    given = calibration(1)
    stored, is_new = store.add(given)
    assert is_new
    assert {name: getattr(stored, name) for name in ("name", "key", "created_at", "source", "samples", "samples_digest")} == {
        name: getattr(given, name) for name in ("name", "key", "created_at", "source", "samples", "samples_digest")
    }
    assert store.document(given.name) == given.document
    assert store.find(given.name) == store.find_version("h100_sxm", 1) == stored
    assert store.find_version("h100_sxm", 2) is None
    assert store.document("h100_sxm@sha256:0") is None


def test_the_same_content_is_stored_once(store: CalibrationRepository) -> None:
    first, _ = store.add(calibration(1))
    assert store.add(calibration(1, at=NOON + timedelta(days=1))) == (first, False)


@pytest.mark.parametrize("change", ["UPDATE calibrations SET source = 'x'", "DELETE FROM calibrations"])
def test_the_database_refuses_to_change_a_calibration(engine: Engine, store: CalibrationRepository, change: str) -> None:
    stored, _ = store.add(calibration(1))
    with pytest.raises(StoreError, match="append-only"), writing(engine) as connection:
        connection.execute(text(change))
    assert store.find(stored.name) == stored


def test_many_writers_get_versions_of_their_own(store: CalibrationRepository) -> None:
    threads = [threading.Thread(target=store.add, args=(calibration(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(row.version for row in store.list(limit=20)) == list(range(1, 9))


def test_a_newer_calibration_makes_older_plans_stale(engine: Engine, store: CalibrationRepository) -> None:
    plans = PlanRepository(engine)
    old, _ = store.add(calibration(1, at=NOON))
    made = NOON + timedelta(hours=1)
    plans.add(numbered(1, created_at=made, request=resting_on("h100_sxm", "h100_sxm")))
    plans.add(numbered(2, created_at=made, request=resting_on(old.name, "a100_sxm")))
    plans.add(numbered(3, created_at=made, request=resting_on("a100_sxm")))
    PlanRepository(engine, "other").add(numbered(1, created_at=made, request=resting_on("h100_sxm")))
    every = tuple(numbered(n).digest for n in (1, 2, 3, 5))
    assert store.stale_uses(every) == ()
    since = made + timedelta(hours=1)
    store.add(calibration(2, at=since))
    newest, _ = store.add(calibration(3, at=since + timedelta(hours=1)))
    plans.add(numbered(5, created_at=since + timedelta(hours=2), request=resting_on("h100_sxm")))
    stale = store.stale_uses(every)
    assert [(use.plan_digest, use.used) for use in stale] == [
        (numbered(1).digest, "h100_sxm"),
        (numbered(2).digest, old.name),
    ]
    assert {(use.key, use.newest, use.since) for use in stale} == {("h100_sxm", newest.name, since)}
    assert store.stale_uses((numbered(2).digest, numbered(3).digest)) == stale[1:]
    assert CalibrationRepository(engine, "other").stale_uses(every) == ()


def test_plans_of_an_older_version_are_noted_by_the_migration(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'plans.db'}")
    upgrade(engine, "0001")
    columns = ", ".join(StoredPlan.__dataclass_fields__)
    values = {**asdict(ROW), "created_at": "2026-03-01 12:30:00.000000", "request": resting_on("h100_sxm", "h100_sxm")}
    with writing(engine) as connection:
        given = ", ".join(f":{name}" for name in StoredPlan.__dataclass_fields__)
        connection.execute(text(f"INSERT INTO plans ({columns}) VALUES ({given})"), values)
    upgrade(engine)
    store = CalibrationRepository(engine)
    newer, _ = store.add(calibration(1, at=ROW.created_at + timedelta(seconds=1)))
    assert [(use.plan_digest, use.used, use.newest) for use in store.stale_uses((ROW.digest,))] == [
        (ROW.digest, "h100_sxm", newer.name)
    ]
    engine.dispose()
