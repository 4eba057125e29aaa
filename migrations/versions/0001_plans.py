"""Create the table of plans."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of plans."""
    op.create_table(
        "plans",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("feasible", sa.Boolean, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("devices", sa.BigInteger, nullable=False),
        sa.Column("tokens_per_s", sa.Float(53), nullable=True),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_plans"),
        sa.UniqueConstraint("digest", name="uq_plans_digest"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_plans_model_id", "plans", ["model", "id"])


def downgrade() -> None:
    """Drop the table of plans."""
    op.drop_index("ix_plans_model_id", table_name="plans")
    op.drop_table("plans")
