"""The tables of jobs: what is to be solved, who solves it, and which calls were made already."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, Index, Integer, String, Table, Text, UniqueConstraint

from meshwright.app.db.tables.metadata import Digest, RowId, UtcTime, metadata, tenant_column

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
workflow       id of the DBOS workflow that runs it; jobs that wait swap theirs (`app.jobs.turns`)
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
