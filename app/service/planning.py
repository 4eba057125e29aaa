"""Answering plan requests: from the store, or with a job that makes the plan."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine

from meshwright.app.base.documents import compact_json
from meshwright.app.base.errors import DocumentError, FieldError, QueueFullError
from meshwright.app.base.settings import Settings
from meshwright.app.requests.digests import RequestKey, keyed_request
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.app.service.engine import JobQueue
from meshwright.app.store.deletion import delete_plan
from meshwright.app.store.engine import reading, writing
from meshwright.app.store.fleet import NOTHING_READ, FleetNamedError, FleetNow, StoredRegistry
from meshwright.app.store.idempotency import IdempotencyRepository
from meshwright.app.store.jobs import Job, JobKind, JobRepository, NewJob
from meshwright.app.store.plans import PlanRepository, PlanStore, RememberedTexts, check_digest
from meshwright.app.store.principal import Principal
from meshwright.app.store.questions import Asked, QuestionRepository
from meshwright.app.store.quota import check_room
from meshwright.app.store.tables import MAX_OWNER
from meshwright.costmodels.units import MIB
from meshwright.solver.problem.request import PlanRequest

ASKED_BYTES = MIB
"""Digests of requests are remembered up to this size together, some eight thousand of them."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The result of a request: the text of the stored plan, or the job that makes it, and whether this call began it."""

    digest: str
    text: str | None
    job: Job | None = None
    is_new: bool = False

    @property
    def how(self) -> str:
        """In a word, for the metrics: stored, queued, or joined."""
        if self.text is not None:
            return "stored"
        return "queued" if self.is_new else "joined"


@dataclass(frozen=True, slots=True)
class Call:
    """A call: a request document, how soon it is wanted, the key that makes asking it twice the same, and where the spans of
    its job belong if any are recorded. Of a document that was read elsewhere there is only its fingerprint."""

    caller: Principal
    document: dict[str, Any] | None
    urgency: int
    idempotency_key: str | None = None
    trace: str | None = None
    document_fingerprint: str | None = None

    def fingerprint(self) -> str:
        """Return what tells the document from others."""
        return self.document_fingerprint or fingerprint_of(self.document)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The request of a call, and the question that it asks of the fleet if it does."""

    key: RequestKey
    asked: Asked | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call that can't be answered without writing: its request, the question that it asks of the fleet if it does, the text
    of the stored plan if there is one, and where the spans of its job belong."""

    caller: Principal
    key: RequestKey
    asked: Asked | None
    urgency: int
    idempotency: _Idempotency
    text: str | None
    trace: str | None


class PlanService:
    """Takes plan requests for one caller at a time. Its methods block."""

    def __init__(self, engine: Engine, queue: JobQueue, settings: Settings, texts: RememberedTexts | None = None):
        self._engine, self._queue, self._settings = engine, queue, settings
        self._texts = texts or RememberedTexts()
        self._asked = RememberedTexts(ASKED_BYTES)

    def submit(self, call: Call) -> Submission:
        """The stored plan of a request document, or the job that will make it.

        Raises as ``look_up`` and ``begin``, and StoreError.
        """
        found = self.look_up(call)
        if isinstance(found, Submission):
            return found
        with writing(self._engine) as connection:
            return self.begin(found, connection)

    def resolve_alone(self, call: Call) -> Resolved | None:
        """The request of a call whose document says everything itself; None when it names something of the fleet.

        Reads no database. Raises DocumentError on a faulty request.
        """
        return resolved_alone(call.document, self._settings.max_time_limit_s)

    def asked_before(self, tenant: str, fingerprint: str | None) -> Submission | None:
        """The answer to a body of that fingerprint which this process has resolved and whose plan it has read, both for this
        tenant; None when the body must be parsed. A digest follows from such a body alone, so it is never out of date.
        """
        digest = None if fingerprint is None else self._asked.find(tenant, fingerprint)
        text = None if digest is None else self._texts.find(tenant, digest)
        return None if digest is None or text is None else Submission(digest, text)

    def note_asked(self, tenant: str, fingerprint: str | None, resolved: Resolved | None) -> None:
        """Remember the digest of a request that was resolved from a body of that fingerprint alone."""
        if fingerprint is not None and resolved is not None:
            self._asked.keep(tenant, fingerprint, resolved.key.digest)

    def remembered(self, call: Call, resolved: Resolved | None) -> Submission | None:
        """The answer to a resolved call whose plan this process has read before; None when it must be looked up."""
        if resolved is None or call.idempotency_key is not None:
            return None
        text = self._texts.find(call.caller.tenant, resolved.key.digest)
        return None if text is None else Submission(resolved.key.digest, text)

    def look_up(self, call: Call, resolved: Resolved | None = None) -> Submission | Wanted:
        """The answer to a call, resolved or not, if reading alone gives it; otherwise what ``begin`` needs.

        Raises DocumentError on a faulty request, KeyReusedError, StoreError.
        """
        tenant = call.caller.tenant
        if resolved is None:
            assert call.document is not None, "a document that was read elsewhere was resolved there"
            resolved = resolved_in_fleet(call.document, self._engine, tenant, self._settings.max_time_limit_s)
        key, asked = resolved.key, resolved.asked
        idempotency = _Idempotency(self._engine, tenant, call)
        target = idempotency.target()
        repeated = None if target is None else self._repeat(call.caller, target)
        if repeated is not None:
            return repeated
        text = self._texts.find(tenant, key.digest) or PlanStore(self._engine, tenant).find(key.digest)
        if text is not None:
            self._texts.keep(tenant, key.digest, text)
        if text is None or idempotency.key is not None or not self._is_noted(tenant, asked, key.digest):
            return Wanted(call.caller, key, asked, call.urgency, idempotency, text, call.trace)
        return Submission(key.digest, text)

    def _is_noted(self, tenant: str, asked: Asked | None, digest: str) -> bool:
        """Return True if nothing need be written to say that a plan answers a question of the fleet, or there is none."""
        if asked is None:
            return True
        with reading(self._engine) as connection:
            known = QuestionRepository(self._engine, tenant).find(connection, asked.digest)
        return known is not None and known.is_answered_by(digest)

    def begin(self, wanted: Wanted, connection: Connection) -> Submission:
        """Note what a call asked, and start a job if its plan is not stored, in the caller's transaction.

        Raises QueueFullError and QuotaError, with which what was done is to be taken back; KeyReusedError.
        """
        plans = PlanRepository(self._engine, wanted.caller.tenant)
        if wanted.text is None or not plans.hold(connection, wanted.key.digest):
            return self._start(wanted, connection)
        self._note(wanted, connection)
        return Submission(wanted.key.digest, wanted.text)

    def delete(self, caller: Principal, digest: str, *, with_dependents: bool) -> None:
        """Delete a stored plan; raises PlanFileError, PlanNotFoundError, InUseError, StoreError."""
        check_digest(digest)
        with writing(self._engine) as connection:
            delete_plan(connection, caller.tenant, digest, with_dependents=with_dependents)
        self._texts.forget(caller.tenant, digest)

    def _start(self, wanted: Wanted, connection: Connection) -> Submission:
        caller, key = wanted.caller, wanted.key
        new = plan_job(key, owner=caller.name, kind=JobKind.PLAN, urgency=wanted.urgency, trace=wanted.trace)
        job, is_new = submit(self._engine, self._queue, connection, caller.tenant, new)
        if is_new:
            jobs = JobRepository(self._engine, caller.tenant)
            self._check_waiting(jobs.waiting(connection) - 1)
            check_room(connection, caller.tenant, self._settings.max_stored_bytes)
        if wanted.asked is not None:
            questions = QuestionRepository(self._engine, caller.tenant)
            questions.ask(connection, wanted.asked, plan=key.digest, is_there=False)
        wanted.idempotency.note(connection, f"job:{job.id}")
        return Submission(key.digest, None, job, is_new)

    def _note(self, wanted: Wanted, connection: Connection) -> None:
        """Note that a stored plan answers a question and a call, unless both are known."""
        if wanted.asked is not None:
            questions = QuestionRepository(self._engine, wanted.caller.tenant)
            known = questions.find(connection, wanted.asked.digest)
            if known is None or not known.is_answered_by(wanted.key.digest):
                questions.ask(connection, wanted.asked, plan=wanted.key.digest, is_there=True)
        wanted.idempotency.note(connection, f"plan:{wanted.key.digest}")

    def _repeat(self, caller: Principal, target: str) -> Submission | None:
        """Return the result of a call when it was first made; None where its job is no longer kept."""
        kind, _, name = target.partition(":")
        if kind == "plan":
            return Submission(name, PlanStore(self._engine, caller.tenant).get(name))
        job = JobRepository(self._engine, caller.tenant).find(name)
        if job is None:
            return None
        return Submission(job.digest, PlanStore(self._engine, caller.tenant).find(job.digest), job)

    def _check_waiting(self, waiting: int) -> None:
        most = self._settings.max_waiting_jobs
        if waiting >= most:
            raise QueueFullError(
                f"{waiting} jobs of your tenant wait already", allowed=f"at most {most}", remedy="try again when some have run"
            )


class _Idempotency:
    """The idempotency key of a call, if it has one."""

    def __init__(self, engine: Engine, tenant: str, call: Call):
        self._keys, self.key = IdempotencyRepository(engine, tenant), call.idempotency_key
        self._fingerprint = "" if self.key is None else call.fingerprint()

    def target(self) -> str | None:
        """Return the target that the call led to, if it was made before."""
        return None if self.key is None else self._keys.target(self.key, self._fingerprint)

    def note(self, connection: Connection, target: str) -> None:
        """Note what the call leads to."""
        if self.key is not None:
            self._keys.note(connection, self.key, self._fingerprint, target)


def resolved_alone(document: object, max_time_limit_s: int) -> Resolved | None:
    """The request of a document that says everything itself; None when it names something of the fleet.

    Raises DocumentError on a faulty request, and on one that may take longer than the limit.
    """
    try:
        request = resolve_request(document, files=NoFiles(), registry=NOTHING_READ, stored=NOTHING_READ)
    except FleetNamedError:
        return None
    check_time_limit(request, max_time_limit_s)
    return Resolved(keyed_request(request), None)


def resolved_in_fleet(document: dict[str, Any], engine: Engine, tenant: str, max_time_limit_s: int) -> Resolved:
    """The request of a document that may name a tenant's models, clusters and calibrations; raises as ``resolved_alone``."""
    registry = StoredRegistry(FleetNow(engine, tenant))
    request = resolve_request(document, files=NoFiles(), registry=registry, stored=registry)
    check_time_limit(request, max_time_limit_s)
    return Resolved(keyed_request(request), registry.asked(document))


def fingerprint_of(document: object) -> str:
    """``sha256:<hex>`` of the JSON text of a document."""
    return f"sha256:{hashlib.sha256(compact_json(document).encode()).hexdigest()}"


def check_time_limit(request: PlanRequest, limit_s: int) -> None:
    """Refuse a request that may be solved for longer; raises DocumentError."""
    if request.search.time_limit_s > limit_s:
        fault = FieldError(
            "search.time_limit_s",
            "longer than this service solves",
            given=f"{request.search.time_limit_s:g}",
            allowed=f"at most {limit_s}",
        )
        raise DocumentError("this request can't be used", (fault,))


# Putting a job into the queue, in the caller's transaction.


def plan_job(key: RequestKey, *, owner: str, kind: JobKind, urgency: int, trace: str | None) -> NewJob:
    """A job that makes the plan of a request; ``trace`` as in `NewJob`."""
    return NewJob(
        id=str(uuid.uuid4()),
        owner=owner[:MAX_OWNER],
        kind=kind,
        digest=key.digest,
        urgency=urgency,
        model=key.model,
        request=key.text,
        trace=trace,
    )


def submit(engine: Engine, queue: JobQueue, connection: Connection, tenant: str, job: NewJob) -> tuple[Job, bool]:
    """Queue a job unless one of its digest is active: the active one, and whether it is this.

    An active one ends no sooner than the transaction: whatever the caller writes to wait for it is there when it ends.
    """
    jobs = JobRepository(engine, tenant)
    while True:
        added = jobs.add(connection, job)
        if added is not None:
            queue.enqueue(connection, workflow=job.id, job_id=job.id, urgency=job.urgency)
            return added, True
        active = jobs.hold_active(connection, job.digest)
        if active is not None:
            return active, False
        # It has ended since: this one is added, and whoever takes it finds the plan stored.
