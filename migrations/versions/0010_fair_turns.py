"""Let a worker find whose turn it is by indexes, and count how often a job was handed back in order."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Count waiting jobs by tenant, no longer by key; find jobs by workflow and a tenant's last start; add the count."""
    op.drop_index("ix_jobs_tenant_owner_status_kind", "jobs")
    op.create_index("ix_jobs_tenant_status_urgency_kind", "jobs", ["tenant", "status", "urgency", "kind"])
    op.create_index("ix_jobs_tenant_started_at", "jobs", ["tenant", "started_at"])
    op.create_index("ix_jobs_workflow", "jobs", ["workflow"])
    op.add_column("jobs", sa.Column("hand_backs", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Bring the old index back and drop what is new."""
    op.drop_column("jobs", "hand_backs")
    op.drop_index("ix_jobs_workflow", "jobs")
    op.drop_index("ix_jobs_tenant_started_at", "jobs")
    op.drop_index("ix_jobs_tenant_status_urgency_kind", "jobs")
    op.create_index("ix_jobs_tenant_owner_status_kind", "jobs", ["tenant", "owner", "status", "kind"])
