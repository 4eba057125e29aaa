"""Bad days of databases and clocks: files that are replaced or can't be written, set-back clocks, processes of two releases."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from sqlalchemy import Engine, select, text, update

from meshwright.app.base.errors import StoreError
from meshwright.app.base.settings import Auth, Settings
from meshwright.app.service.desk import JobDesk
from meshwright.app.service.engine import QueueClient, migrate_queue
from meshwright.app.service.planning import Call, PlanService
from meshwright.app.service.worker import Reaper
from meshwright.app.store.engine import open_engine, reading, writing
from meshwright.app.store.jobs import JobStatus
from meshwright.app.store.migrate import ensure_ready, upgrade
from meshwright.app.store.principal import LOCAL
from meshwright.app.store.replans import WEBHOOK_SENDING, due_webhooks
from meshwright.app.store.tables import jobs
from tests.attacks.served import COMMAND
from tests.attacks.webhooks import finished_batch
from tests.support.fakes import FakeSolver
from tests.support.requests_given import training
from tests.support.service import running_service

HOUR_S = 3600.0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    engine = open_engine(url)
    upgrade(engine)
    migrate_queue(url)
    yield engine
    engine.dispose()


def test_another_file_in_the_stores_place_is_not_written_past(tmp_path: Path) -> None:
    store, copy = tmp_path / "plans.db", tmp_path / "copy.db"
    # Who restores a backup with the service running: what comes after would go to a file that nobody sees.
    with running_service(Settings(f"sqlite:///{store}", auth=Auth.OFF), FakeSolver()) as client:
        assert client.post("/v1/plans", json=training()).status_code == 201
        shutil.copy(store, copy)
        copy.replace(store)
        for answer in (client.get("/v1/plans"), client.post("/v1/plans", json=training(search={"seed": 1}))):
            assert answer.status_code == 503
            assert "restart the service" in answer.json()["detail"]
            assert "retry-after" in answer.headers
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
        store.unlink()
        assert client.get("/v1/plans").status_code == 503
        assert not store.exists(), "no empty store is put in the place of one that is gone"


@pytest.mark.slow
def test_a_store_that_can_not_be_written_is_said_in_a_line(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can't be mounted here")
    try:
        engine = open_engine(f"sqlite:///{folder / 'plans.db'}")
        upgrade(engine)
        engine.dispose()
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], capture_output=True, check=True)
        environment = os.environ | {"MESHWRIGHT_DATABASE_URL": str(engine.url), "MESHWRIGHT_AUTH": "off"}
        served = subprocess.run([*COMMAND, "serve", "--port", "0"], env=environment, capture_output=True, text=True, timeout=60)
        assert served.returncode != 0
        assert "plans.db does not answer" in served.stderr and "Traceback" not in served.stderr
        (tmp_path / "r.yaml").write_text(yaml.safe_dump(training()))
        command = [*COMMAND, "plan", str(tmp_path / "r.yaml")]
        planned = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert planned.returncode == 0, planned.stderr
        assert "planning without the plan store" in " ".join(planned.stderr.split())
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S], ids=["forward", "back"])
def test_a_clock_that_jumps_keeps_no_lost_job_from_being_taken_over(engine: Engine, jump_s: float) -> None:
    queue = QueueClient(engine)
    service = PlanService(engine, queue, Settings(str(engine.url)))
    job = service.submit(Call(LOCAL, training(), urgency=3)).job
    assert job is not None
    desk = JobDesk(engine)
    assert desk.begin(job.id, "w") is not None
    assert desk.silent(for_s=15, limit=10) == ()
    # As it stands when the clock has been set by an hour since the last beat; its worker is gone.
    with writing(engine) as connection:
        connection.execute(update(jobs).values(beat_s=jobs.c.beat_s + jump_s))
    assert [silent.id for silent in desk.silent(for_s=15, limit=10)] == [job.id]
    Reaper(engine, queue, silent_s=15)()
    with reading(engine) as connection:
        assert connection.execute(select(jobs.c.status)).scalar_one() == JobStatus.RUNNING.value
    assert desk.silent(for_s=15, limit=10) == (), "it is dealt with once, by the clock of now"
    queue.close()


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S], ids=["forward", "back"])
def test_a_clock_that_jumps_keeps_no_webhook_from_being_called(engine: Engine, jump_s: float) -> None:
    finished_batch(engine, "acme", 0, "http://127.0.0.1:1/done")
    with writing(engine) as connection:
        stands = text("UPDATE replans SET webhook_status = :status, webhook_beat_s = :beat_s")
        connection.execute(stands, {"status": WEBHOOK_SENDING, "beat_s": time.time() + jump_s})
    with reading(engine) as connection:
        assert len(due_webhooks(connection, silent_s=30, limit=10)) == 1


def test_processes_of_the_release_before_serve_a_database_that_was_migrated(postgresql: Engine, settings: Settings) -> None:
    url = postgresql.url.render_as_string(hide_password=False)
    revision = text("UPDATE alembic_version SET version_num = :to")
    with running_service(replace(settings, database_url=url), FakeSolver()) as client:
        with writing(postgresql) as connection:
            before = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
            connection.execute(revision, {"to": "9999"})
        try:
            assert client.get("/readyz").status_code == 200
            assert client.post("/v1/plans", json=training()).status_code == 201
            ensure_ready(postgresql)
            with writing(postgresql) as connection:
                connection.execute(revision, {"to": "0001"})
            assert client.get("/readyz").status_code == 503
            with pytest.raises(StoreError, match="run 'meshwright migrate'"):
                ensure_ready(postgresql)
        finally:
            with writing(postgresql) as connection:
                connection.execute(revision, {"to": before})
