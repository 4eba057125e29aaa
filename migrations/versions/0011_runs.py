"""Create the table of measured runs, which nothing can change."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table and let the database refuse to change a row."""
    op.create_table(
        "runs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cluster", sa.String(200), nullable=False),
        sa.Column("profile", sa.String(200), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("plan", sa.String(71), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("predicted", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("tenant", "digest", name="uq_runs_tenant_digest"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_runs_tenant_cluster_profile_id", "runs", ["tenant", "cluster", "profile", "id"])
    op.create_index("ix_runs_tenant_plan_id", "runs", ["tenant", "plan", "id"])
    _forbid_changes()


def downgrade() -> None:
    """Drop the table."""
    op.drop_index("ix_runs_tenant_plan_id", table_name="runs")
    op.drop_index("ix_runs_tenant_cluster_profile_id", table_name="runs")
    op.drop_table("runs")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION runs_are_append_only()")


def _forbid_changes() -> None:
    """Let the database itself refuse to change or delete a run."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION runs_are_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'runs are append-only'; END $$"
        )
        op.execute(
            "CREATE TRIGGER runs_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON runs "
            "FOR EACH STATEMENT EXECUTE FUNCTION runs_are_append_only()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER runs_no_{change.lower()} BEFORE {change} ON runs "
            "BEGIN SELECT RAISE(ABORT, 'runs are append-only'); END"
        )
