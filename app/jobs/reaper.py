"""Finding jobs that nobody works on, and giving them back to the queue.

A running job beats every second. One that has been silent for long belongs to a worker that is frozen, cut off or gone,
or to a thread that died: its workflow is resumed, so that another worker takes it. The old worker, should it come back,
finds that its attempt is over. A queued job whose workflow is over or was never there is queued again.
Every worker runs a reaper; the database lets one of them deal with each job.
"""

from __future__ import annotations

import logging
import uuid

from sqlalchemy import Engine

from meshwright.app.db.engine import writing
from meshwright.app.jobs.desk import JobDesk, SilentJob
from meshwright.app.jobs.engine import QueueClient, WorkflowState

log = logging.getLogger(__name__)

BATCH = 500


class Reaper:
    """Looks through the silent jobs, once a call."""

    def __init__(self, engine: Engine, queue: QueueClient, *, silent_s: float):
        self._engine, self._queue, self._silent_s = engine, queue, silent_s
        self._desk = JobDesk(engine)

    def __call__(self) -> int:
        """Give back what nobody works on; how many jobs. Raises StoreError when the database can't be asked."""
        silent = self._desk.silent(for_s=self._silent_s, limit=BATCH)
        if not silent:
            return 0
        states = self._queue.states([job.workflow for job in silent])
        waiting = [job for job in silent if states[job.workflow] is WorkflowState.WAITING]
        if waiting:
            self._desk.note_waiting(waiting, for_s=self._silent_s)
        left = (job for job in silent if states[job.workflow] is not WorkflowState.WAITING)
        return sum(self._give_back(job, states[job.workflow]) for job in left)

    def _give_back(self, job: SilentJob, state: WorkflowState) -> bool:
        """Give a silent job back to the queue. Return False where another reaper does."""
        workflow = uuid.uuid4().hex if state is WorkflowState.OVER else None
        with writing(self._engine) as connection:
            if not self._desk.claim_silent(connection, job, workflow=workflow):
                return False
            if workflow is not None:
                self._queue.enqueue(connection, workflow=workflow, job_id=job.id, urgency=job.urgency)
        if state is WorkflowState.TAKEN:
            self._queue.resume([job.workflow])
        log.warning("job given back to the queue", extra={"job": job.id, "workflow_was": state.value})
        return True
