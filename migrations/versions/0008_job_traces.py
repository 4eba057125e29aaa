"""Let a job carry the trace of the request that began it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("jobs", sa.Column("trace", sa.String(55), nullable=True))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("jobs", "trace")
