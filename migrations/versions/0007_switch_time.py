"""Note how long it takes at least to switch from an old plan to a new one, and what must come from a checkpoint."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, empty for the batches that there are."""
    op.add_column("replan_items", sa.Column("switch_storage_bytes", sa.BigInteger, nullable=True))
    op.add_column("replan_items", sa.Column("switch_s", sa.Float(53), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    op.drop_column("replan_items", "switch_s")
    op.drop_column("replan_items", "switch_storage_bytes")
