"""Count how many lost attempts of a job came before one that got on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the count."""
    op.add_column("jobs", sa.Column("forgiven", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop it: all lost attempts count again."""
    op.drop_column("jobs", "forgiven")
