"""Count how many bytes of documents each tenant has stored, as they come and go."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

DOCUMENTS = {
    "plans": ("plan", "request"),
    "questions": ("document",),
    "registered": ("document",),
    "calibrations": ("document",),
    "runs": ("run", "predicted"),
    "checks": ("report",),
}
"""The columns of documents that are kept until somebody deletes them."""


def upgrade() -> None:
    """Create the table, count what is stored so far, and let the database itself count what changes."""
    op.create_table(
        "tenant_bytes",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("tenant", name="pk_tenant_bytes"),
    )
    stored = " UNION ALL ".join(f"SELECT tenant, {_size(table)} AS size FROM {table}" for table in DOCUMENTS)
    op.execute(f"INSERT INTO tenant_bytes (tenant, bytes) SELECT tenant, SUM(size) FROM ({stored}) AS stored GROUP BY tenant")
    for table in DOCUMENTS:
        if _is_postgresql():
            _count_in_postgresql(table)
        else:
            _count_in_sqlite(table)


def downgrade() -> None:
    """Drop the count."""
    for table in DOCUMENTS:
        if _is_postgresql():
            op.execute(f"DROP TRIGGER {table}_bytes ON {table}")
            op.execute(f"DROP FUNCTION count_bytes_of_{table}()")
        else:
            op.execute(f"DROP TRIGGER {table}_bytes_insert")
            op.execute(f"DROP TRIGGER {table}_bytes_delete")
    op.drop_table("tenant_bytes")


def _count_in_postgresql(table: str) -> None:
    op.execute(
        f"CREATE FUNCTION count_bytes_of_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF TG_OP = 'DELETE' THEN "
        f"UPDATE tenant_bytes SET bytes = bytes - ({_size(table, 'OLD.')}) WHERE tenant = OLD.tenant; "
        f"ELSE INSERT INTO tenant_bytes AS counted (tenant, bytes) VALUES (NEW.tenant, {_size(table, 'NEW.')}) "
        "ON CONFLICT (tenant) DO UPDATE SET bytes = counted.bytes + excluded.bytes; "
        "END IF; RETURN NULL; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_bytes AFTER INSERT OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION count_bytes_of_{table}()"
    )


def _count_in_sqlite(table: str) -> None:
    """One writer at a time: what is not there is added, then counted. (An upsert would take the conflict clause of the insert
    that fires the trigger: SQLite's documentation, CREATE TRIGGER.)"""
    op.execute(
        f"CREATE TRIGGER {table}_bytes_insert AFTER INSERT ON {table} BEGIN "
        "INSERT INTO tenant_bytes (tenant, bytes) SELECT NEW.tenant, 0 "
        "WHERE NOT EXISTS (SELECT 1 FROM tenant_bytes WHERE tenant = NEW.tenant); "
        f"UPDATE tenant_bytes SET bytes = bytes + {_size(table, 'NEW.')} WHERE tenant = NEW.tenant; END"
    )
    op.execute(
        f"CREATE TRIGGER {table}_bytes_delete AFTER DELETE ON {table} BEGIN "
        f"UPDATE tenant_bytes SET bytes = bytes - ({_size(table, 'OLD.')}) WHERE tenant = OLD.tenant; END"
    )


def _size(table: str, row: str = "") -> str:
    """The bytes of a row's documents, in SQL."""
    size = "octet_length({})" if _is_postgresql() else "length(CAST({} AS BLOB))"
    return " + ".join(size.format(row + column) for column in DOCUMENTS[table])


def _is_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
