"""Let the index of waiting jobs answer by itself how many of a caller's there are."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Index the kind too, so that counting reads no rows."""
    op.drop_index("ix_jobs_tenant_owner_status", "jobs")
    op.create_index("ix_jobs_tenant_owner_status_kind", "jobs", ["tenant", "owner", "status", "kind"])


def downgrade() -> None:
    """Bring the old index back."""
    op.drop_index("ix_jobs_tenant_owner_status_kind", "jobs")
    op.create_index("ix_jobs_tenant_owner_status", "jobs", ["tenant", "owner", "status"])
