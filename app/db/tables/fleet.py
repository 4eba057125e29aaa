"""The tables of the fleet: registered models and clusters, the questions asked of them, and re-plans."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint

from meshwright.app.db.tables.jobs import JobId
from meshwright.app.db.tables.metadata import Digest, Name, RowId, UtcTime, metadata, tenant_column

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
"""Models and clusters under a name; append-only, every change is a new version.

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
