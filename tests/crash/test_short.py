"""Short trials of what ``python -m tests.crash`` does at length."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.databases import postgresql_cluster, postgresql_programs, sqlite_file
from tests.crash.trial import Violence, run_trial


@pytest.mark.slow
def test_nothing_is_lost_on_sqlite(tmp_path: Path) -> None:
    with sqlite_file(tmp_path) as database:
        outcome = run_trial(database, Violence(jobs=20, workers=1, rounds=2, pause_s=1.0, seed=3, finish_within_s=90))
    assert (outcome.faults, outcome.finished, outcome.stored) == ([], 20, 20)


@pytest.mark.slow
def test_nothing_is_lost_on_postgresql() -> None:
    if postgresql_programs() is None:
        pytest.skip("PostgreSQL can't be started here")
    with postgresql_cluster() as database:
        outcome = run_trial(database, Violence(jobs=30, workers=2, rounds=4, pause_s=1.0, seed=1, finish_within_s=90))
    assert (outcome.faults, outcome.finished, outcome.stored) == ([], 30, 30)
