"""Create the table of webhook secrets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "webhook_secrets",
        sa.Column("id", sa.String(12), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("salt", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_secrets"),
    )
    op.create_index("ix_webhook_secrets_tenant", "webhook_secrets", ["tenant"])


def downgrade() -> None:
    """Drop the table: calls are signed with the service's secret again."""
    op.drop_table("webhook_secrets")
