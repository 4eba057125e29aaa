"""A disk that fills up: a clear error, nothing corrupted, and work goes on when there is room again."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from meshwright.app.base.errors import StoreError
from meshwright.app.base.settings import Settings
from meshwright.app.service.engine import QueueClient, migrate_queue
from meshwright.app.service.planning import Call, PlanService
from meshwright.app.store.engine import open_engine, reading
from meshwright.app.store.jobs import JobStatus
from meshwright.app.store.migrate import upgrade
from meshwright.app.store.principal import LOCAL
from meshwright.app.store.tables import jobs
from tests.crash.databases import postgresql_cluster, postgresql_programs
from tests.crash.trial import Workers
from tests.support.requests_given import training

DISK_BYTES = 6 * 2**20
POSTGRESQL_DISK_BYTES = 160 * 2**20
"""An empty cluster takes 40 MB, and its log another 16 to 80 MB."""


@pytest.fixture
def small_disk(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of a few megabytes, or of so many bytes as a test asks for."""
    # A short path: that of PostgreSQL's socket has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="mw"))
    size = getattr(request, "param", DISK_BYTES)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        folder.rmdir()
        pytest.skip("a small file system can't be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"x" * 4096)
        except OSError:
            return


def submit_until_refused(submit: Callable[[int], None]) -> None:
    """There may be room for a few jobs left in what the database has taken already."""
    for seed in range(4, 200):
        submit(seed)


@pytest.mark.slow
def test_a_full_disk_loses_nothing(small_disk: Path) -> None:
    settings = Settings(f"sqlite:///{small_disk / 'plans.db'}")
    engine = open_engine(settings.database_url)
    upgrade(engine)
    migrate_queue(settings.database_url)
    queue = QueueClient(engine)
    service = PlanService(engine, queue, settings)

    def submit(seed: int) -> None:
        service.submit(Call(LOCAL, training(search={"seed": seed}), urgency=3))

    def finished() -> int:
        with reading(engine) as connection:
            done = select(func.count()).where(jobs.c.status == JobStatus.SUCCEEDED.value)
            return int(connection.execute(done).scalar_one())

    for seed in range(4):
        submit(seed)
    fill(small_disk / "ballast")
    with pytest.raises(StoreError, match="full"):
        submit_until_refused(submit)
    workers = Workers(settings.database_url, 1)
    try:
        time.sleep(4)
        (small_disk / "ballast").unlink()
        submit(300)
        with reading(engine) as connection:
            submitted = int(connection.execute(select(func.count()).select_from(jobs)).scalar_one())
        deadline_s = time.monotonic() + 180
        while finished() < submitted and time.monotonic() < deadline_s:
            # A worker that could not start on the full disk has ended; its supervisor starts another.
            workers.revive()
            time.sleep(0.2)
        assert finished() == submitted >= 5
    finally:
        workers.stop()
    with reading(engine) as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
    queue.close()
    engine.dispose()


@pytest.mark.slow
@pytest.mark.skipif(postgresql_programs() is None, reason="needs PostgreSQL's programs, and root to become another user")
@pytest.mark.parametrize("small_disk", [POSTGRESQL_DISK_BYTES], indirect=True)
def test_a_full_disk_under_postgresql_loses_nothing(small_disk: Path) -> None:
    with postgresql_cluster("-c wal_recycle=off -c min_wal_size=32MB -c max_wal_size=32MB", parent=small_disk) as database:
        engine = open_engine(database.url)
        upgrade(engine)
        migrate_queue(database.url)
        queue = QueueClient(engine)
        service = PlanService(engine, queue, Settings(database.url))
        accepted = 0
        for seed in range(4):
            service.submit(Call(LOCAL, training(search={"seed": seed}), urgency=3))
        fill(small_disk / "ballast")
        refused: list[str] = []
        for seed in range(4, 5000):
            try:
                service.submit(Call(LOCAL, training(search={"seed": seed}), urgency=3))
                accepted += 1
            except StoreError as error:
                # Nothing but this comes of it: 503 for who asks.
                refused.append(str(error))
                if len(refused) == 3:
                    break
        assert len(refused) == 3
        (small_disk / "ballast").unlink()
        # Where the log had no room either, the server has ended, and its supervisor starts it again.
        database.crash()
        workers = Workers(database.url, 1)
        try:
            deadline_s = time.monotonic() + 180
            states = select(jobs.c.status, func.count()).group_by(jobs.c.status)
            found: dict[str, int] = {}
            while found.get(JobStatus.SUCCEEDED.value, 0) < 4 and time.monotonic() < deadline_s:
                workers.revive()
                time.sleep(0.2)
                with contextlib.suppress(StoreError), reading(engine) as connection:
                    found = dict(connection.execute(states).all())
            assert sum(found.values()) >= 4 + accepted
            assert found[JobStatus.SUCCEEDED.value] >= 4 and JobStatus.FAILED.value not in found
        finally:
            workers.stop()
        queue.close()
        engine.dispose()
