"""Starting, previewing and cancelling re-plan batches."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from sqlalchemy import Connection, Engine

from meshwright.app.db.engine import reading, writing
from meshwright.app.db.tables.jobs import MAX_OWNER
from meshwright.app.errors import JobIsFinalError, NoSuchError
from meshwright.app.fleet.registry import FleetNow
from meshwright.app.fleet.resolving import resolve_question
from meshwright.app.jobs.job import REPLAN_URGENCY, JobKind, NewJob
from meshwright.app.jobs.queue import JobQueue
from meshwright.app.jobs.repository import JobRepository
from meshwright.app.jobs.submission import submit
from meshwright.app.plans.repository import PlanRepository
from meshwright.app.questions.repository import QuestionFilter, QuestionRepository
from meshwright.app.replans.repository import RUNNING, Replan, ReplanRepository
from meshwright.app.replans.webhook import WebhookSettings, check_url
from meshwright.app.security.principal import Principal
from meshwright.costmodels.errors import InvalidInputError

BATCH_PREFIX = "replan:"


class ReplanPolicy(StrEnum):
    """The policy for plans that a change makes stale: they are marked, or planned again as well."""

    MARK = "mark"
    START = "start"


@dataclass(frozen=True, slots=True)
class ReplanOptions:
    """The options for the plans that a change makes stale: what to do with them, and whom to call when they are planned."""

    policy: ReplanPolicy = ReplanPolicy.MARK
    webhook: str | None = None


@dataclass(frozen=True, slots=True)
class ReplanWish:
    """The wish for a batch: the stale questions to plan again, and why; the version that made them stale; whom to call at the
    end."""

    about: QuestionFilter
    cause: str
    version: int | None = None
    webhook: str | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """A preview of a batch: questions that are stale, distinct plans they need, and how many of those are stored."""

    questions: int
    plans: int
    stored: int
    unusable: int


class ReplanService:
    """Batches of one caller at a time. Its methods block; call them in threads."""

    def __init__(self, engine: Engine, queue: JobQueue, webhooks: WebhookSettings):
        self._engine, self._queue, self._webhooks = engine, queue, webhooks

    def check_webhook(self, url: str | None) -> None:
        """Refuse a URL that may not be called; raises DocumentError."""
        if url is not None:
            check_url(url, self._webhooks)

    def start(self, connection: Connection, caller: Principal, wish: ReplanWish) -> str:
        """Start a batch in the caller's transaction: its id. A worker finds out what is to be planned."""
        stale = QuestionRepository(self._engine, caller.tenant).select_with(connection, replace(wish.about, stale=True))
        batch = Replan(
            row=0,
            id=str(uuid.uuid4()),
            cluster=wish.about.cluster,
            version=wish.version,
            cause=wish.cause,
            status=RUNNING,
            created_at=datetime.now(UTC),
            finished_at=None,
            revision=1,
            webhook=wish.webhook,
            webhook_status=None,
        )
        ReplanRepository(self._engine, caller.tenant).add(connection, batch, stale)
        job = NewJob(
            id=str(uuid.uuid4()),
            owner=caller.name[:MAX_OWNER],
            kind=JobKind.BATCH,
            digest=BATCH_PREFIX + batch.id,
            urgency=REPLAN_URGENCY,
            model=wish.about.model or "",
            request="{}",
        )
        submit(self._engine, self._queue, connection, caller.tenant, job)
        return batch.id

    def start_now(self, caller: Principal, wish: ReplanWish) -> Replan:
        """As ``start``, in a transaction of its own: the batch."""
        self.check_webhook(wish.webhook)
        with writing(self._engine) as connection:
            replan_id = self.start(connection, caller, wish)
        return self.get(caller, replan_id)

    def preview(self, caller: Principal, about: QuestionFilter) -> Preview:
        """Return the preview of a batch of now."""
        digests: set[str] = set()
        unusable, fleet = 0, FleetNow(self._engine, caller.tenant)
        with reading(self._engine) as connection:
            stale = QuestionRepository(self._engine, caller.tenant).select_with(connection, replace(about, stale=True))
        for question in stale:
            try:
                digests.add(resolve_question(fleet, question.document).key.digest)
            except InvalidInputError:
                unusable += 1
        plans = PlanRepository(self._engine, caller.tenant)
        stored = sum(plans.find(digest) is not None for digest in digests)
        return Preview(len(stale), len(digests), stored, unusable)

    def get(self, caller: Principal, replan_id: str) -> Replan:
        """A batch; raises NoSuchError."""
        found = ReplanRepository(self._engine, caller.tenant).find(replan_id) if replan_id.isprintable() else None
        if found is None:
            raise NoSuchError("there is no such re-plan", given=replan_id)
        return found

    def cancel(self, caller: Principal, replan_id: str) -> Replan:
        """Cancel a batch, and the jobs that it began and nothing else waits for.

        Raises NoSuchError, JobIsFinalError when it has ended.
        """
        self.get(caller, replan_id)
        jobs = JobRepository(self._engine, caller.tenant)
        with writing(self._engine) as connection:
            idle = ReplanRepository(self._engine, caller.tenant).cancel(connection, replan_id)
            if idle is None:
                raise JobIsFinalError("the re-plan has ended already", given=self.get(caller, replan_id).status)
            ended = [jobs.cancel(connection, job, kind=JobKind.REPLAN) for job in idle]
        self._queue.cancel([workflow for workflow in ended if workflow is not None])
        return self.get(caller, replan_id)
