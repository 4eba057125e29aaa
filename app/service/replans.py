"""Starting, previewing and cancelling re-plan batches."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from sqlalchemy import Connection, Engine

from meshwright.app.base.errors import DocumentError, FieldError, JobIsFinalError, NoSuchError
from meshwright.app.requests.calibrations import read_calibration_document
from meshwright.app.requests.limits import check_values
from meshwright.app.service.engine import JobQueue
from meshwright.app.service.planning import submit
from meshwright.app.service.webhook import WebhookSettings, check_url
from meshwright.app.store.calibrations import CalibrationStore, KeptCalibration, change_of
from meshwright.app.store.deletion import delete_registered
from meshwright.app.store.engine import reading, writing
from meshwright.app.store.fleet import (
    FleetNow,
    Registered,
    RegisteredKind,
    RegisteredRepository,
    canonical_digest,
    registered_cluster,
    registered_model,
    resolve_question,
)
from meshwright.app.store.jobs import REPLAN_URGENCY, JobKind, JobRepository, NewJob
from meshwright.app.store.plans import PlanRepository
from meshwright.app.store.principal import Principal
from meshwright.app.store.questions import QuestionFilter, QuestionRepository
from meshwright.app.store.replans import RUNNING, Replan, ReplanRepository
from meshwright.app.store.tables import MAX_OWNER
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


# Adding calibrations for a caller, and what a new one does to the plans that follow it.


@dataclass(frozen=True, slots=True)
class Added:
    """The result of adding a calibration: what was kept, and the id of the batch, if one was started."""

    kept: KeptCalibration
    replan: str | None


class CalibrationService:
    """One caller's calibrations. Its methods block; call them in threads."""

    def __init__(self, engine: Engine, replans: ReplanService):
        self._engine, self._replans = engine, replans

    def add(self, caller: Principal, document: object, options: ReplanOptions) -> Added:
        """Store a calibration; a new one marks the plans that follow its device stale, in the same transaction.

        Raises ClusterError for a document that can't be used, DocumentError for a webhook that may not be called, StoreError.
        """
        self._replans.check_webhook(options.webhook)
        check_values(document)
        calibration = read_calibration_document(document)
        with writing(self._engine) as connection:
            kept = CalibrationStore(self._engine, caller.tenant).keep_with(connection, calibration)
            replan = None
            if kept.is_new and options.policy is ReplanPolicy.START:
                about = QuestionFilter(calibration=kept.row.key)
                wish = ReplanWish(about, cause=change_of(kept.row), version=kept.row.version, webhook=options.webhook)
                replan = self._replans.start(connection, caller, wish)
        return Added(kept, replan)


# Registering models and clusters, and what a change of one does to the plans that rest on it.

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
ALLOWED_NAME = "letters, digits, '.', '_' and '-', at most 200, the first a letter or digit"


@dataclass(frozen=True, slots=True)
class Put:
    """The result of a PUT: the newest version, whether it is new, how many plans became stale, and the batch, if any."""

    version: Registered
    is_new: bool
    stale: int
    replan: str | None


@dataclass(frozen=True, slots=True)
class PutOptions:
    """Digest that the newest version must have, if any; and what to do with stale plans."""

    expected: str | None = None
    replan: ReplanOptions = field(default_factory=ReplanOptions)


class FleetService:
    """One caller's models and clusters. Its methods block; call them in threads."""

    def __init__(self, engine: Engine, replans: ReplanService):
        self._engine, self._replans = engine, replans

    def put(self, caller: Principal, kind: RegisteredKind, name: str, document: object, options: PutOptions) -> Put:
        """Register a document; a change marks the plans that rest on the old one as stale, in the same transaction.

        Raises DocumentError, VersionChangedError, StoreError.
        """
        check_name(name)
        self._replans.check_webhook(options.replan.webhook)
        text = registered_model(document, name) if kind is RegisteredKind.MODEL else registered_cluster(document)
        digest = canonical_digest(json.loads(text))
        about = QuestionFilter(model=name) if kind is RegisteredKind.MODEL else QuestionFilter(cluster=name)
        with writing(self._engine) as connection:
            put = RegisteredRepository(self._engine, caller.tenant, kind).put
            version, is_new = put(connection, name, digest=digest, document=text, expected=options.expected)
            stale, replan = 0, None
            if is_new and version.version > 1:
                reason = f"{kind} {name} is at version {version.version}"
                stale = QuestionRepository(self._engine, caller.tenant).mark_stale(connection, about, reason)
                if options.replan.policy is ReplanPolicy.START:
                    wish = ReplanWish(about, cause=reason, version=version.version, webhook=options.replan.webhook)
                    replan = self._replans.start(connection, caller, wish)
        return Put(version, is_new, stale, replan)

    def get(self, caller: Principal, kind: RegisteredKind, name: str, version: int | None) -> Registered:
        """A version, the newest unless told; raises NoSuchError."""
        return find_registered(RegisteredRepository(self._engine, caller.tenant, kind).find, kind, name, version)

    def delete(self, caller: Principal, kind: RegisteredKind, name: str, *, with_dependents: bool) -> None:
        """Delete every version under a name; raises NoSuchError, InUseError, StoreError."""
        self.get(caller, kind, name, None)
        with writing(self._engine) as connection:
            delete_registered(connection, caller.tenant, kind, name, with_dependents=with_dependents)


def find_registered(
    find: Callable[[str, int | None], Registered | None], kind: RegisteredKind, name: str, version: int | None
) -> Registered:
    """Return the document that ``find`` finds; raises NoSuchError when there is none."""
    found = find(name, version) if NAME.fullmatch(name) else None
    if found is None:
        given = name if version is None else f"{name}, version {version}"
        remedy = f"GET /v1/{kind}s lists what is registered, PUT /v1/{kind}s/NAME registers one"
        raise NoSuchError(f"no such {kind} is registered", given=given, remedy=remedy)
    return found


def check_name(name: str) -> None:
    """Refuse a name that can't stand in an address; raises DocumentError."""
    if not NAME.fullmatch(name):
        raise DocumentError("this can't be registered", (FieldError("name", "can't be used", repr(name[:100]), ALLOWED_NAME),))
