"""Every table of the database, known to one metadata: what migrations and their test compare with."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

# The parts that all tables share: the naming of constraints, the type of row ids, and the tenant column.

DEFAULT_TENANT = "default"
"""Tenant of the command line, of a service without authentication, and of what was stored before there were tenants."""

MAX_TENANT = 64

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    }
)

# SQLite numbers rows by itself only in a column of exactly the type INTEGER.
RowId = BigInteger().with_variant(Integer, "sqlite")

UtcTime = DateTime(timezone=True)
Digest = String(71)
Name = String(200)


def tenant_column() -> Column[str]:
    """Who owns the row. Queries see it only through ``app.store.statements``."""
    return Column("tenant", String(MAX_TENANT), nullable=False)


# The table of plans. ``migrations/`` creates the tables; a test compares the two.

plans = Table(
    "plans",
    metadata,
    Column("id", RowId, primary_key=True),
    tenant_column(),
    Column("digest", Digest, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("model", Name, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("feasible", Boolean, nullable=False),
    Column("status", String(16), nullable=False),
    Column("devices", BigInteger, nullable=False),
    Column("tokens_per_s", Float(53), nullable=True),
    Column("plan", Text, nullable=False),
    Column("request", Text, nullable=False),
    UniqueConstraint("tenant", "digest", name="uq_plans_tenant_digest"),
    Index("ix_plans_tenant_model_id", "tenant", "model", "id"),
    sqlite_autoincrement=True,
)
"""Plans, never changed once written: the row that comes first for a tenant and digest stays until its tenant deletes it.

id             order of arrival, what list cursors count
digest         sha256:<hex> of the canonical request
status         of the certificate
plan, request  JSON of the plan (meshwright.plan/1) and of the resolved request (meshwright.request/1)
"""


# The tables of jobs: what is to be solved, who solves it, and which calls were made already.

JobId = String(36)
MAX_OWNER = 300
MAX_PARENT = 55
"""Length of a ``traceparent`` (W3C Trace Context, version 00)."""

jobs = Table(
    "jobs",
    metadata,
    Column("row", RowId, primary_key=True),
    Column("id", JobId, nullable=False, unique=True),
    tenant_column(),
    Column("owner", String(MAX_OWNER), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("digest", Digest, nullable=False),
    Column("active_digest", Digest, nullable=True),
    Column("urgency", Integer, nullable=False),
    Column("model", String(200), nullable=False),
    Column("request", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("started_at", UtcTime, nullable=True),
    Column("finished_at", UtcTime, nullable=True),
    Column("workflow", String(64), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("hand_backs", Integer, nullable=False, server_default="0"),
    Column("forgiven", Integer, nullable=False, server_default="0"),
    Column("worker", String(200), nullable=True),
    Column("beat_s", Float(53), nullable=False),
    Column("revision", Integer, nullable=False),
    Column("progress", Text, nullable=True),
    Column("problem", Text, nullable=True),
    Column("answer", Text, nullable=True),
    Column("best", Text, nullable=True),
    Column("trace", String(MAX_PARENT), nullable=True),
    UniqueConstraint("tenant", "active_digest", name="uq_jobs_tenant_active_digest"),
    Index("ix_jobs_tenant_row", "tenant", "row"),
    Index("ix_jobs_tenant_status_urgency_kind", "tenant", "status", "urgency", "kind"),
    Index("ix_jobs_tenant_started_at", "tenant", "started_at"),
    Index("ix_jobs_workflow", "workflow"),
    Index("ix_jobs_status_beat_s", "status", "beat_s"),
    sqlite_autoincrement=True,
)
"""Jobs: each makes the plan of one request.

owner          the caller that submitted it (``key:<prefix>``, ``oidc:<subject>``)
kind           "plan", "replan" for a plan that a re-plan batch asked for, or "batch" for finding out what one has to plan
status         queued, running, succeeded, failed, cancelled
active_digest  the digest while the job is queued or running, null afterwards: one active job for each digest
urgency        of the tenant's jobs, 0 is served first, 7 last (RFC 9218)
workflow       id of the DBOS workflow that runs it; jobs that wait swap theirs (`app.service.desk`)
attempt        how often a worker has begun it; a worker that lost its job to another finds another number here
hand_backs     how many of these attempts ended because their worker was told to stop: they are no losses
forgiven       how many were lost before the last attempt that got on: they are no losses in a row
beat_s         when it was last known to be alive, or was submitted; the database's clock, seconds of the epoch
revision       grows with every change that a watcher should see
progress       JSON of the last progress; problem: JSON of the problem document it failed with
answer         plan document of a search that ended without deciding: it is given, not stored
trace          traceparent of the request that began it, where traces are recorded
best           plan document of the best plan so far, for those who can't wait; checked, its certificate that of its moment
"""

workers = Table(
    "workers",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("version", String(40), nullable=False),
    Column("slots", Integer, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("beat_s", Float(53), nullable=False),
    Column("draining", Boolean, nullable=False),
)
"""Worker processes, of all tenants together: alive while their beat is young."""

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("id", RowId, primary_key=True),
    tenant_column(),
    Column("key", String(255), nullable=False),
    Column("fingerprint", Digest, nullable=False),
    Column("target", String(200), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("tenant", "key", name="uq_idempotency_keys_tenant_key"),
    sqlite_autoincrement=True,
)
"""Calls that must happen once: ``fingerprint`` of method, path and body, and the address that the first call led to."""


# The tables of the fleet: registered models and clusters, the questions asked of them, and re-plans.

registered = Table(
    "registered",
    metadata,
    Column("id", RowId, primary_key=True),
    tenant_column(),
    Column("kind", String(16), nullable=False),
    Column("name", Name, nullable=False),
    Column("version", Integer, nullable=False),
    Column("digest", Digest, nullable=False),
    Column("document", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("tenant", "kind", "name", "version", name="uq_registered_tenant_kind_name_version"),
    sqlite_autoincrement=True,
)
"""Models and clusters under a name: every change is a new version, and all are deleted together.

kind      "model" or "cluster"
digest    sha256 over the RFC 8785 form of the document, which has every reference resolved
"""

questions = Table(
    "questions",
    metadata,
    Column("id", RowId, primary_key=True),
    tenant_column(),
    Column("digest", Digest, nullable=False),
    Column("document", Text, nullable=False),
    Column("cluster", Name, nullable=True),
    Column("model", Name, nullable=True),
    Column("created_at", UtcTime, nullable=False),
    Column("plan", Digest, nullable=True),
    Column("pending", Digest, nullable=True),
    Column("stale_since", UtcTime, nullable=True),
    Column("stale_reason", Text, nullable=True),
    UniqueConstraint("tenant", "digest", name="uq_questions_tenant_digest"),
    Index("ix_questions_tenant_cluster", "tenant", "cluster"),
    Index("ix_questions_tenant_model", "tenant", "model"),
    Index("ix_questions_tenant_plan", "tenant", "plan"),
    Index("ix_questions_tenant_pending", "tenant", "pending"),
    sqlite_autoincrement=True,
)
"""Requests that name what changes (a registered model or cluster, a device's newest calibration), as they were asked; the
plan that answers one changes with the fleet.

digest     of the request document with its names unresolved
plan       digest of the current plan: the pointer; null until there is one
pending    digest of the plan that will be the current one once it is made; null when none is awaited
stale_*    since when and why the current plan no longer fits the fleet; null while it does
"""

question_calibrations = Table(
    "question_calibrations",
    metadata,
    Column("id", RowId, primary_key=True),
    tenant_column(),
    Column("question", RowId, ForeignKey("questions.id"), nullable=False),
    Column("key", Name, nullable=False),
    UniqueConstraint("tenant", "question", "key", name="uq_question_calibrations_tenant_question_key"),
    Index("ix_question_calibrations_tenant_key", "tenant", "key"),
    sqlite_autoincrement=True,
)
"""Device keys whose newest stored calibration a question is planned with, whichever that is."""

answers = Table(
    "answers",
    metadata,
    Column("id", RowId, primary_key=True),
    tenant_column(),
    Column("question", RowId, ForeignKey("questions.id"), nullable=False),
    Column("plan", Digest, nullable=False),
    Column("cluster_version", Integer, nullable=True),
    Column("model_version", Integer, nullable=True),
    Column("replan", JobId, nullable=True),
    Column("created_at", UtcTime, nullable=False),
    Index("ix_answers_tenant_question", "tenant", "question", "id"),
    Index("ix_answers_tenant_plan", "tenant", "plan"),
    sqlite_autoincrement=True,
)
"""The pointer's history: which plan answered a question from when, under which versions, by which re-plan."""

replans = Table(
    "replans",
    metadata,
    Column("row", RowId, primary_key=True),
    Column("id", JobId, nullable=False, unique=True),
    tenant_column(),
    Column("cluster", Name, nullable=True),
    Column("version", Integer, nullable=True),
    Column("cause", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("finished_at", UtcTime, nullable=True),
    Column("revision", Integer, nullable=False),
    Column("webhook", Text, nullable=True),
    Column("webhook_status", Text, nullable=True),
    Column("webhook_beat_s", Float(53), nullable=True),
    Index("ix_replans_tenant_row", "tenant", "row"),
    sqlite_autoincrement=True,
)
"""Batches that plan stale questions again.

status          running, finished, cancelled
webhook_status  what became of the call when the batch had finished: pending, sending, then the answer in words
webhook_beat_s  when a worker last was about to call; the database's clock, seconds of the epoch
"""

replan_items = Table(
    "replan_items",
    metadata,
    Column("id", RowId, primary_key=True),
    tenant_column(),
    Column("replan", JobId, nullable=False),
    Column("question", RowId, ForeignKey("questions.id"), nullable=False),
    Column("job", JobId, nullable=True),
    Column("digest", Digest, nullable=True),
    Column("old_plan", Digest, nullable=True),
    Column("outcome", String(16), nullable=False),
    Column("reason", Text, nullable=True),
    Column("old_value", Float(53), nullable=True),
    Column("new_value", Float(53), nullable=True),
    Column("switch_bytes", BigInteger, nullable=True),
    Column("switch_storage_bytes", BigInteger, nullable=True),
    Column("switch_s", Float(53), nullable=True),
    Index("ix_replan_items_tenant_replan_outcome", "tenant", "replan", "outcome"),
    Index("ix_replan_items_tenant_digest", "tenant", "digest"),
    sqlite_autoincrement=True,
)
"""One question of a batch.

digest      of the plan that will answer it
outcome     waiting, then better, worse, unchanged, infeasible, failed or cancelled
*_value     the objective's figure of the old and the new plan, in the objective's unit
switch_*    bytes that devices receive when a training run goes from the old plan to the new one, how many of them no device
            holds any more, and the least time of it; null where there is nothing to switch
"""


# The tables of calibrations, and of what plans rest on.

CalibrationName = String(272)
"""A key, "@" and a digest."""

calibrations = Table(
    "calibrations",
    metadata,
    Column("id", RowId, primary_key=True),
    tenant_column(),
    Column("name", CalibrationName, nullable=False),
    Column("key", Name, nullable=False),
    Column("version", Integer, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("source", Text, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("samples_digest", Digest, nullable=False),
    Column("document", Text, nullable=False),
    UniqueConstraint("tenant", "name", name="uq_calibrations_tenant_name"),
    UniqueConstraint("tenant", "key", "version", name="uq_calibrations_tenant_key_version"),
    sqlite_autoincrement=True,
)
"""Calibrations, append-only: triggers of the database refuse updates and deletes.

name            <key>@sha256:<hex> of the canonical document: a name never means another content
key             the device's calibration key ("h100_sxm"); version counts from 1 within a tenant's key
samples         measured rows that it was fitted to; samples_digest is theirs
document        JSON (meshwright.calibration/1)
"""

plan_calibrations = Table(
    "plan_calibrations",
    metadata,
    Column("id", RowId, primary_key=True),
    tenant_column(),
    Column("plan", Digest, nullable=False),
    Column("key", Name, nullable=False),
    Column("calibration", CalibrationName, nullable=False),
    UniqueConstraint("tenant", "plan", "key", name="uq_plan_calibrations_tenant_plan_key"),
    Index("ix_plan_calibrations_tenant_key", "tenant", "key"),
    sqlite_autoincrement=True,
)
"""The calibrations that each plan rests on: by device key, the calibration used (the key itself: the one that Meshwright
ships)."""


# The table of measured runs of plans.

runs = Table(
    "runs",
    metadata,
    Column("id", RowId, primary_key=True),
    tenant_column(),
    Column("digest", Digest, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("cluster", Name, nullable=False),
    Column("profile", Name, nullable=False),
    Column("model", Name, nullable=False),
    Column("plan", Digest, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("run", Text, nullable=False),
    Column("predicted", Text, nullable=False),
    UniqueConstraint("tenant", "digest", name="uq_runs_tenant_digest"),
    Index("ix_runs_tenant_cluster_profile_id", "tenant", "cluster", "profile", "id"),
    Index("ix_runs_tenant_plan_id", "tenant", "plan", "id"),
    sqlite_autoincrement=True,
)
"""Measured runs, append-only: triggers of the database refuse updates and deletes.

digest           sha256:<hex> of the canonical run: the same run reported twice is one row
cluster, profile the hardware that it ran on, and the framework's profile or the launcher that ran it
plan             digest of the plan that ran
run              JSON of what was measured (meshwright.run/1)
predicted        JSON of what the cost model said of the plan without any correction from runs
"""


# The table of what each tenant has stored.

tenant_bytes = Table(
    "tenant_bytes",
    metadata,
    Column("tenant", String(MAX_TENANT), primary_key=True),
    Column("bytes", BigInteger, nullable=False),
)
"""Bytes of the documents that a tenant keeps until it deletes them: plans, questions, models, clusters, calibrations, runs and
checks. Triggers of the database count them, whoever writes."""


# The table of checks: what continuous integration found, run by run.

checks = Table(
    "checks",
    metadata,
    Column("row", RowId, primary_key=True),
    Column("id", String(36), nullable=False, unique=True),
    tenant_column(),
    Column("project", Name, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("exit_code", Integer, nullable=False),
    Column("report", Text, nullable=False),
    Index("ix_checks_tenant_row", "tenant", "row"),
    Index("ix_checks_tenant_project_row", "tenant", "project", "row"),
    sqlite_autoincrement=True,
)
"""Reports of checks (meshwright.check/1), never changed once written."""


# The tables of who may do what, and who did.

api_keys = Table(
    "api_keys",
    metadata,
    Column("prefix", String(12), primary_key=True),
    Column("sha256", String(64), nullable=False),
    tenant_column(),
    Column("name", Name, nullable=False),
    Column("scopes", String(200), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=True),
    Column("revoked_at", UtcTime, nullable=True),
)
"""API keys: of a key's text only the prefix and a hash of the whole. ``scopes`` are separated by spaces."""

audit = Table(
    "audit",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("at", UtcTime, nullable=False),
    tenant_column(),
    Column("principal", String(300), nullable=False),
    Column("action", String(200), nullable=False),
    Column("target", String(1000), nullable=False),
    Column("status", Integer, nullable=False),
    Column("request_id", String(128), nullable=False),
    Index("ix_audit_tenant_id", "tenant", "id"),
    sqlite_autoincrement=True,
)
"""Who changed what, and who was refused; rows are only ever added, and deleted once they are old (`app.service.worker`)."""

webhook_secrets = Table(
    "webhook_secrets",
    metadata,
    Column("id", String(12), primary_key=True),
    tenant_column(),
    Column("salt", String(64), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("ends_at", UtcTime, nullable=True),
    Index("ix_webhook_secrets_tenant", "tenant"),
)
"""Secrets that webhook calls of a tenant are signed with. A row alone gives no secret: the service's own is needed too.

salt     random; the secret is made of it and of the service's own secret
sha256   of the secret's text, hexadecimal: whether it is still the one that was shown
ends_at  from when nothing is signed with it; null for never
"""
