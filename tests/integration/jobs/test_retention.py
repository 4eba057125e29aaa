"""Finished jobs, re-plans, idempotency keys and entries of the audit log end with their time; nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, Table, func, insert, select, update

from meshwright.app.base.settings import Settings
from meshwright.app.service.engine import QueueClient, WorkflowState, migrate_queue
from meshwright.app.service.planning import Call, PlanService
from meshwright.app.service.worker import BATCH, Retention
from meshwright.app.store.engine import open_engine, reading, writing
from meshwright.app.store.jobs import JobStatus
from meshwright.app.store.migrate import upgrade
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.store.replans import WEBHOOK_PENDING
from meshwright.app.store.tables import audit, idempotency_keys, jobs, plans, replans
from tests.support.requests_given import training

DAY = timedelta(days=1)
NOW = datetime.now(UTC)
OLD, YOUNG = NOW - 3 * DAY, NOW - DAY / 2


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    engine = open_engine(url)
    upgrade(engine)
    migrate_queue(url)
    yield engine
    engine.dispose()


@pytest.fixture
def queue(engine: Engine) -> Iterator[QueueClient]:
    queue = QueueClient(engine)
    yield queue
    queue.close()


def kept(engine: Engine, table: Table) -> int:
    with reading(engine) as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def look(engine: Engine, queue: QueueClient) -> int:
    return Retention(engine, queue, keep_jobs=DAY, keep_audit=2 * DAY)()


def test_final_jobs_end_with_their_places_in_the_queue(engine: Engine, queue: QueueClient) -> None:
    service = PlanService(engine, queue, Settings("sqlite://"))
    caller = Principal("acme", "key:a", frozenset(Scope))
    made = [service.submit(Call(caller, training(search={"seed": seed}), urgency=3)).job for seed in range(4)]
    ids = [job.id for job in made if job is not None]
    states = [(JobStatus.SUCCEEDED, OLD), (JobStatus.FAILED, YOUNG), (JobStatus.QUEUED, None), (JobStatus.CANCELLED, OLD)]
    with writing(engine) as connection:
        for job_id, (status, finished_at) in zip(ids, states, strict=True):
            changed = {"status": status.value, "created_at": OLD, "finished_at": finished_at}
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(changed))
    assert look(engine, queue) == 2
    with reading(engine) as connection:
        left = set(connection.execute(select(jobs.c.id)).scalars())
    assert left == {ids[1], ids[2]}
    found = queue.states(ids)
    assert [found[job_id] for job_id in ids].count(WorkflowState.OVER) == 2
    assert found[ids[2]] is WorkflowState.WAITING
    assert look(engine, queue) == 0


def test_entries_of_the_audit_log_end_batch_after_batch(engine: Engine, queue: QueueClient) -> None:
    entry = {"tenant": "a", "principal": "p", "action": "x", "target": "/", "status": 401, "request_id": "r"}
    with writing(engine) as connection:
        connection.execute(insert(audit), [entry | {"at": OLD}] * (2 * BATCH + 1) + [entry | {"at": YOUNG}] * 3)
    assert look(engine, queue) == 2 * BATCH + 1
    assert kept(engine, audit) == 3


def test_replans_end_once_their_receiver_has_been_told(engine: Engine, queue: QueueClient) -> None:
    batch = {"tenant": "a", "cause": "c", "status": "finished", "created_at": OLD, "finished_at": OLD, "revision": 1}
    rows = [
        batch | {"id": "done", "webhook_status": "200"},
        batch | {"id": "untold", "webhook_status": WEBHOOK_PENDING},
        batch | {"id": "running", "status": "running", "finished_at": None, "webhook_status": None},
        batch | {"id": "silent", "webhook_status": None},
    ]
    with writing(engine) as connection:
        connection.execute(insert(replans), rows)
    assert look(engine, queue) == 2
    with reading(engine) as connection:
        assert set(connection.execute(select(replans.c.id)).scalars()) == {"untold", "running"}


def test_plans_stay_and_old_idempotency_keys_do_not(engine: Engine, queue: QueueClient) -> None:
    plan = {"tenant": "a", "digest": "sha256:1", "created_at": OLD - 1000 * DAY, "model": "m", "kind": "training"}
    plan |= {"feasible": True, "status": "optimal", "devices": 8, "plan": "{}", "request": "{}"}
    key = {"tenant": "a", "fingerprint": "f", "target": "/"}
    with writing(engine) as connection:
        connection.execute(insert(plans), [plan])
        connection.execute(
            insert(idempotency_keys), [key | {"key": "old", "created_at": OLD}, key | {"key": "young", "created_at": YOUNG}]
        )
    assert look(engine, queue) == 1
    assert (kept(engine, plans), kept(engine, idempotency_keys)) == (1, 1)
