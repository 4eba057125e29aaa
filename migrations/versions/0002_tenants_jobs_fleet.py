"""Give every plan a tenant; create the tables of jobs, workers, registered models and clusters, and re-plans."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TIME = sa.DateTime(timezone=True)
AUTOINCREMENT = {"sqlite_autoincrement": True}
TENANT_OF_OLD_PLANS = "default"


def upgrade() -> None:
    """Create the tables; plans that are there belong to the default tenant."""
    with op.batch_alter_table("plans", table_kwargs=AUTOINCREMENT) as plans:
        plans.add_column(sa.Column("tenant", sa.String(64), nullable=False, server_default=TENANT_OF_OLD_PLANS))
        plans.drop_constraint("uq_plans_digest", type_="unique")
        plans.create_unique_constraint("uq_plans_tenant_digest", ["tenant", "digest"])
        plans.drop_index("ix_plans_model_id")
        plans.create_index("ix_plans_tenant_model_id", ["tenant", "model", "id"])
    with op.batch_alter_table("plans", table_kwargs=AUTOINCREMENT) as plans:
        plans.alter_column("tenant", existing_type=sa.String(64), existing_nullable=False, server_default=None)
    _create_jobs()
    _create_fleet()
    _create_replans()


def downgrade() -> None:
    """Drop the tables. Of plans that several tenants have, the one that came first stays."""
    for table in ("replan_items", "replans", "answers", "questions", "registered", "idempotency_keys", "workers", "jobs"):
        op.drop_table(table)
    op.execute("DELETE FROM plans WHERE id NOT IN (SELECT MIN(id) FROM plans GROUP BY digest)")
    with op.batch_alter_table("plans", table_kwargs=AUTOINCREMENT) as plans:
        plans.drop_index("ix_plans_tenant_model_id")
        plans.drop_constraint("uq_plans_tenant_digest", type_="unique")
        plans.drop_column("tenant")
        plans.create_unique_constraint("uq_plans_digest", ["digest"])
        plans.create_index("ix_plans_model_id", ["model", "id"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("row", ROW_ID, nullable=False),
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(300), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("active_digest", sa.String(71), nullable=True),
        sa.Column("urgency", sa.Integer, nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("started_at", TIME, nullable=True),
        sa.Column("finished_at", TIME, nullable=True),
        sa.Column("workflow", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("worker", sa.String(200), nullable=True),
        sa.Column("beat_s", sa.Float(53), nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("progress", sa.Text, nullable=True),
        sa.Column("problem", sa.Text, nullable=True),
        sa.Column("answer", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("row", name="pk_jobs"),
        sa.UniqueConstraint("id", name="uq_jobs_id"),
        sa.UniqueConstraint("tenant", "active_digest", name="uq_jobs_tenant_active_digest"),
        **AUTOINCREMENT,
    )
    op.create_index("ix_jobs_tenant_row", "jobs", ["tenant", "row"])
    op.create_index("ix_jobs_tenant_owner_status", "jobs", ["tenant", "owner", "status"])
    op.create_index("ix_jobs_status_beat_s", "jobs", ["status", "beat_s"])
    op.create_table(
        "workers",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("version", sa.String(40), nullable=False),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("beat_s", sa.Float(53), nullable=False),
        sa.Column("draining", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_workers"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.String(71), nullable=False),
        sa.Column("target", sa.String(200), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_idempotency_keys"),
        sa.UniqueConstraint("tenant", "key", name="uq_idempotency_keys_tenant_key"),
        **AUTOINCREMENT,
    )


def _create_fleet() -> None:
    op.create_table(
        "registered",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_registered"),
        sa.UniqueConstraint("tenant", "kind", "name", "version", name="uq_registered_tenant_kind_name_version"),
        **AUTOINCREMENT,
    )
    op.create_table(
        "questions",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("cluster", sa.String(200), nullable=True),
        sa.Column("model", sa.String(200), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("plan", sa.String(71), nullable=True),
        sa.Column("pending", sa.String(71), nullable=True),
        sa.Column("stale_since", TIME, nullable=True),
        sa.Column("stale_reason", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_questions"),
        sa.UniqueConstraint("tenant", "digest", name="uq_questions_tenant_digest"),
        **AUTOINCREMENT,
    )
    for column in ("cluster", "model", "plan", "pending"):
        op.create_index(f"ix_questions_tenant_{column}", "questions", ["tenant", column])
    op.create_table(
        "answers",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("question", ROW_ID, nullable=False),
        sa.Column("plan", sa.String(71), nullable=False),
        sa.Column("cluster_version", sa.Integer, nullable=True),
        sa.Column("model_version", sa.Integer, nullable=True),
        sa.Column("replan", sa.String(36), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_answers"),
        sa.ForeignKeyConstraint(["question"], ["questions.id"], name="fk_answers_question_questions"),
        **AUTOINCREMENT,
    )
    op.create_index("ix_answers_tenant_question", "answers", ["tenant", "question", "id"])
    op.create_index("ix_answers_tenant_plan", "answers", ["tenant", "plan"])


def _create_replans() -> None:
    op.create_table(
        "replans",
        sa.Column("row", ROW_ID, nullable=False),
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("cluster", sa.String(200), nullable=True),
        sa.Column("version", sa.Integer, nullable=True),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("finished_at", TIME, nullable=True),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("webhook", sa.Text, nullable=True),
        sa.Column("webhook_status", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("row", name="pk_replans"),
        sa.UniqueConstraint("id", name="uq_replans_id"),
        **AUTOINCREMENT,
    )
    op.create_index("ix_replans_tenant_row", "replans", ["tenant", "row"])
    op.create_table(
        "replan_items",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("replan", sa.String(36), nullable=False),
        sa.Column("question", ROW_ID, nullable=False),
        sa.Column("job", sa.String(36), nullable=True),
        sa.Column("digest", sa.String(71), nullable=True),
        sa.Column("old_plan", sa.String(71), nullable=True),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=True),
        sa.Column("old_value", sa.Float(53), nullable=True),
        sa.Column("new_value", sa.Float(53), nullable=True),
        sa.Column("switch_bytes", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_replan_items"),
        sa.ForeignKeyConstraint(["question"], ["questions.id"], name="fk_replan_items_question_questions"),
        **AUTOINCREMENT,
    )
    op.create_index("ix_replan_items_tenant_replan_outcome", "replan_items", ["tenant", "replan", "outcome"])
    op.create_index("ix_replan_items_tenant_digest", "replan_items", ["tenant", "digest"])
