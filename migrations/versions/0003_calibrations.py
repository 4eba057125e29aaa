"""Create the tables of calibrations, which nothing can change, and of what plans rest on."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create both tables; note what the plans stored so far rest on."""
    row_id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "calibrations",
        sa.Column("id", row_id, nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("name", sa.String(272), nullable=False),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("samples", sa.BigInteger, nullable=False),
        sa.Column("samples_digest", sa.String(71), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_calibrations"),
        sa.UniqueConstraint("tenant", "name", name="uq_calibrations_tenant_name"),
        sa.UniqueConstraint("tenant", "key", "version", name="uq_calibrations_tenant_key_version"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "plan_calibrations",
        sa.Column("id", row_id, nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("plan", sa.String(71), nullable=False),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("calibration", sa.String(272), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_plan_calibrations"),
        sa.UniqueConstraint("tenant", "plan", "key", name="uq_plan_calibrations_tenant_plan_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_plan_calibrations_tenant_key", "plan_calibrations", ["tenant", "key"])
    _forbid_changes()
    _note_stored_plans()


def downgrade() -> None:
    """Drop both tables."""
    op.drop_index("ix_plan_calibrations_tenant_key", table_name="plan_calibrations")
    op.drop_table("plan_calibrations")
    op.drop_table("calibrations")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION calibrations_are_append_only()")


def _forbid_changes() -> None:
    """Let the database itself refuse to change or delete a calibration."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION calibrations_are_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'calibrations are append-only'; END $$"
        )
        op.execute(
            "CREATE TRIGGER calibrations_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON calibrations "
            "FOR EACH STATEMENT EXECUTE FUNCTION calibrations_are_append_only()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER calibrations_no_{change.lower()} BEFORE {change} ON calibrations "
            "BEGIN SELECT RAISE(ABORT, 'calibrations are append-only'); END"
        )


def _note_stored_plans() -> None:
    """Note the calibrations that plans stored before this version rest on: those that their clusters' devices name."""
    connection = op.get_bind()
    plans = sa.table("plans", sa.column("tenant"), sa.column("digest"), sa.column("request"))
    notes = sa.table("plan_calibrations", sa.column("tenant"), sa.column("plan"), sa.column("key"), sa.column("calibration"))
    for tenant, plan, request in connection.execute(sa.select(plans.c.tenant, plans.c.digest, plans.c.request)).all():
        groups = json.loads(request).get("cluster", {}).get("groups", ())
        for key in sorted({group["node"]["device"]["calibration"] for group in groups}):
            note = {"tenant": tenant, "plan": plan, "key": key, "calibration": key}
            connection.execute(sa.insert(notes).values(note))
