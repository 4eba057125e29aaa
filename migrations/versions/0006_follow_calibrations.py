"""Note which questions follow the newest calibration of a device, since when a webhook is being called, and best plans."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table and the columns; questions about clusters follow the devices that their plans rest on."""
    op.create_table(
        "question_calibrations",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column(
            "question",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            sa.ForeignKey("questions.id", name="fk_question_calibrations_question_questions"),
            nullable=False,
        ),
        sa.Column("key", sa.String(200), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_question_calibrations"),
        sa.UniqueConstraint("tenant", "question", "key", name="uq_question_calibrations_tenant_question_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_question_calibrations_tenant_key", "question_calibrations", ["tenant", "key"])
    op.add_column("replans", sa.Column("webhook_beat_s", sa.Float(53), nullable=True))
    # Whoever was sending these is long gone.
    op.execute("UPDATE replans SET webhook_beat_s = 0 WHERE webhook_status = 'sending'")
    op.add_column("jobs", sa.Column("best", sa.Text, nullable=True))
    op.execute(
        "INSERT INTO question_calibrations (tenant, question, key) "
        "SELECT questions.tenant, questions.id, plan_calibrations.key FROM questions JOIN plan_calibrations "
        "ON plan_calibrations.tenant = questions.tenant AND plan_calibrations.plan = questions.plan "
        "WHERE questions.cluster IS NOT NULL"
    )


def downgrade() -> None:
    """Drop what was added: no plan and no calibration is lost."""
    op.drop_column("jobs", "best")
    op.drop_column("replans", "webhook_beat_s")
    op.drop_index("ix_question_calibrations_tenant_key", table_name="question_calibrations")
    op.drop_table("question_calibrations")
