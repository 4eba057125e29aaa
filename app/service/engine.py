"""The durable queue, on DBOS: the only module that imports it.

DBOS keeps who runs which workflow, in the plan store's own database, so that a job and its place in the queue are
written in one transaction. What a job is, and what became of it, is in the table ``jobs``; a workflow only carries the
job's id to a worker, and may be given to a second worker when the first falls silent.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol, cast

from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions, Serializer
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import make_url

from meshwright.app.store.engine import is_sqlite
from meshwright.app.store.statements import Compiled, CompilingOnce

QUEUE = "jobs"
WORKFLOW = "run_job"
APPLICATION = "meshwright"
APPLICATION_VERSION = "jobs-1"
"""Changes only when a worker could no longer run what an older version put in the queue."""

POLL_S = 0.2
"""The time between two looks of a worker with room for work."""
MAX_DISPATCHES = 1_000_000
"""DBOS's own limit is out of the way: how often a job is tried again is counted by its attempts."""


class WorkflowState(Enum):
    """The state of a workflow: it will still run, a worker has it, or it is over or was never there."""

    WAITING = "waiting"
    TAKEN = "taken"
    OVER = "over"


_STATES = {"ENQUEUED": WorkflowState.WAITING, "DELAYED": WorkflowState.WAITING, "PENDING": WorkflowState.TAKEN}


class JsonSerializer(Serializer):
    """The serializer of DBOS: it stores JSON, so nothing that is read back can run code."""

    def serialize(self, data: Any) -> str:
        """JSON text; an exception becomes its text."""
        return json.dumps(data, default=str)

    def deserialize(self, serialized_data: str) -> Any:
        """The value of a JSON text."""
        return json.loads(serialized_data)

    def name(self) -> str:
        """Name that DBOS stores beside the data."""
        return "meshwright_json"


def migrate_queue(database_url: str) -> None:
    """Bring the queue's own tables to what this version of DBOS needs; safe to repeat."""
    quiet_dbos()
    DBOS.migrate(_dbos_url(database_url))


class QueueClient:
    """Puts jobs into the queue, and asks for and changes what is in it."""

    def __init__(self, engine: Engine):
        quiet_dbos()
        self._is_sqlite = is_sqlite(engine)
        self._compiled: dict[tuple[str, tuple[str, ...]], Compiled] = {}
        self._client = DBOSClient(
            system_database_url=_dbos_url(engine.url.render_as_string(hide_password=False)),
            # DBOS compiles its inserts once where they go through its own engine. On SQLite it never does, and its writes need
            # transactions that begin otherwise than ours.
            system_database_engine=None if self._is_sqlite else engine,
            serializer=JsonSerializer(),
            application_name=APPLICATION,
            lazy=True,
            retry_connection_errors=False,
        )

    def enqueue(self, connection: Connection, *, workflow: str, job_id: str, urgency: int) -> None:
        """Queue a job in the caller's transaction."""
        options: EnqueueOptions = {
            "workflow_name": WORKFLOW,
            "queue_name": QUEUE,
            "workflow_id": workflow,
            "app_version": APPLICATION_VERSION,
            # DBOS takes 1 for the most urgent.
            "priority": urgency + 1,
        }
        mine = cast(Connection, CompilingOnce(connection, self._compiled)) if self._is_sqlite else connection
        self._client.enqueue_in_transaction(mine, options, job_id)

    def states(self, workflows: Sequence[str]) -> dict[str, WorkflowState]:
        """Return the state of each workflow."""
        found = self._client.list_workflows(workflow_ids=list(workflows), load_input=False, load_output=False)
        known = {status.workflow_id: _STATES.get(status.status, WorkflowState.OVER) for status in found}
        return {workflow: known.get(workflow, WorkflowState.OVER) for workflow in workflows}

    def resume(self, workflows: Sequence[str]) -> None:
        """Give workflows back to the queue, whoever has them; those that are over stay so."""
        if workflows:
            self._client.resume_workflows(list(workflows), queue_name=QUEUE)

    def cancel(self, workflows: Sequence[str]) -> None:
        """Take workflows out of the queue."""
        self._client.cancel_workflows(list(workflows))

    def forget(self, workflows: Sequence[str]) -> None:
        """Delete workflows that are over."""
        self._client.delete_workflows(list(workflows))

    def close(self) -> None:
        """Close the connections."""
        self._client.destroy()


class QueueConsumer:
    """Takes workflows out of the queue, ``slots`` at a time, and has ``run_job`` run each in a thread. One in a process."""

    def __init__(self, database_url: str, *, name: str, slots: int, run_job: Callable[[str], None]):
        quiet_dbos()
        config: DBOSConfig = {
            "name": APPLICATION,
            "system_database_url": _dbos_url(database_url),
            "application_version": APPLICATION_VERSION,
            "executor_id": name,
            "serializer": JsonSerializer(),
            "run_migrations": False,
            "log_level": "WARNING",
            "sys_db_pool_size": slots + 3,
        }
        DBOS(config=config)

        @DBOS.workflow(name=WORKFLOW, max_recovery_attempts=MAX_DISPATCHES)
        def run(job_id: str) -> None:
            # The job is chosen at its turn; that it was queued with this id is not asked.
            assert DBOS.workflow_id is not None, "inside of a workflow"
            run_job(DBOS.workflow_id)

        self._slots = slots

    def start(self) -> None:
        """Begin to take jobs."""
        DBOS.launch()
        DBOS.register_queue(QUEUE, worker_concurrency=self._slots, polling_interval_sec=POLL_S, on_conflict="always_update")

    def stop(self, *, finish_within_s: int) -> None:
        """Take no more jobs; wait so long for those that run. Those that still do can be given back by ``resume``."""
        DBOS.destroy(destroy_registry=True, workflow_completion_timeout_sec=finish_within_s)


def quiet_dbos() -> None:
    """Send DBOS's log through ours; it would set up a console of its own."""
    logger = logging.getLogger("dbos")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = True
    logger.setLevel(logging.WARNING)


def _dbos_url(database_url: str) -> str:
    url = make_url(database_url)
    if url.get_backend_name() == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    return url.render_as_string(hide_password=False)


# The operations of the durable queue that the service needs.


class JobQueue(Protocol):
    """Where jobs wait for a worker."""

    def enqueue(self, connection: Connection, *, workflow: str, job_id: str, urgency: int) -> None:
        """Queue a job in the caller's transaction."""
        ...

    def cancel(self, workflows: Sequence[str]) -> None:
        """Take workflows out of the queue."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
