"""Create the table of checks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "checks",
        sa.Column("row", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("project", sa.String(200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("exit_code", sa.Integer, nullable=False),
        sa.Column("report", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("row", name="pk_checks"),
        sa.UniqueConstraint("id", name="uq_checks_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_checks_tenant_row", "checks", ["tenant", "row"])
    op.create_index("ix_checks_tenant_project_row", "checks", ["tenant", "project", "row"])


def downgrade() -> None:
    """Drop the table: the history of checks is gone then."""
    op.drop_table("checks")
