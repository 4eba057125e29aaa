"""The rows that our queue puts into DBOS's tables are those that DBOS itself would put there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from dbos import DBOSClient
from sqlalchemy import Engine, text

from meshwright.app.base.settings import Settings
from meshwright.app.service.engine import (
    APPLICATION,
    APPLICATION_VERSION,
    QUEUE,
    WORKFLOW,
    JsonSerializer,
    QueueClient,
    migrate_queue,
)
from meshwright.app.store.engine import is_sqlite, open_engine, reading, writing

pytestmark = pytest.mark.both_databases
OWN = ("workflow_uuid", "creator_xid", "created_at", "updated_at", "retention_timestamp")


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    migrate_queue(settings.database_url)
    engine = open_engine(settings.database_url)
    yield engine
    engine.dispose()


def rows(engine: Engine, table: str) -> dict[str, dict[str, Any]]:
    """Rows of a table of DBOS by workflow, without what differs from one to the next."""
    prefix = "" if is_sqlite(engine) else "dbos."
    with reading(engine) as connection:
        found = connection.execute(text(f"SELECT * FROM {prefix}{table}")).mappings().all()
    return {row["workflow_uuid"]: {name: value for name, value in row.items() if name not in OWN} for row in found}


def test_jobs_are_queued_as_dbos_does(engine: Engine) -> None:
    queue = QueueClient(engine)
    theirs = DBOSClient(
        system_database_url=engine.url.render_as_string(hide_password=False),
        serializer=JsonSerializer(),
        application_name=APPLICATION,
    )
    ids = [f"{engine.dialect.name}-{name}" for name in ("theirs", "first", "second")]
    with writing(engine) as connection:
        options: Any = {
            "workflow_name": WORKFLOW,
            "queue_name": QUEUE,
            "workflow_id": ids[0],
            "app_version": APPLICATION_VERSION,
            "priority": 4,
        }
        theirs.enqueue_in_transaction(connection, options, "job")
    # The second time, the statements are there already.
    for workflow in ids[1:]:
        with writing(engine) as connection:
            queue.enqueue(connection, workflow=workflow, job_id="job", urgency=3)
    for table in ("workflow_status", "workflow_input"):
        found = rows(engine, table)
        assert found[ids[0]] == found[ids[1]] == found[ids[2]]
    theirs.destroy()
    queue.close()


def test_what_is_rolled_back_is_not_queued(engine: Engine) -> None:
    queue = QueueClient(engine)
    workflow = f"{engine.dialect.name}-taken-back"
    with writing(engine) as connection:
        queue.enqueue(connection, workflow=workflow, job_id="job", urgency=3)
        connection.rollback()
    assert workflow not in rows(engine, "workflow_status")
    queue.close()
