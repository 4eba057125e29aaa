"""How much a tenant has stored, and whether it may store more."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, select

from meshwright.app.base.errors import QuotaError
from meshwright.app.store.engine import reading
from meshwright.app.store.statements import owned
from meshwright.app.store.tables import tenant_bytes


def check_room(connection: Connection, tenant: str, most_bytes: int) -> None:
    """Raise QuotaError where a tenant has as much stored as it may."""
    held = owned(select(tenant_bytes.c.bytes), tenant_bytes, tenant)
    stored = connection.execute(held).scalar_one_or_none() or 0
    if stored >= most_bytes:
        raise QuotaError(
            "your tenant has as much stored as it may",
            given=f"{stored} bytes stored",
            allowed=f"{most_bytes} bytes",
            remedy="delete plans, models or clusters, or have MESHWRIGHT_MAX_STORED_BYTES raised",
        )


def check_room_now(engine: Engine, tenant: str, most_bytes: int) -> None:
    """As ``check_room``, in a transaction of its own; raises StoreError too."""
    with reading(engine) as connection:
        check_room(connection, tenant, most_bytes)
