"""Whose rows a query sees. Every query of a table with a ``tenant`` column goes through here, and only through here.

What another tenant owns does not exist for the one who asks: endpoints answer 404, never 403.
"""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import BindParameter, Delete, Select, String, Table, Update, bindparam

Scoped = TypeVar("Scoped", Select[Any], Update, Delete)


TENANT = bindparam("tenant", type_=String)
"""Stands for the tenant in statements that are built once: building one takes longer than running it."""


def owned(statement: Scoped, table: Table, tenant: str | BindParameter[str]) -> Scoped:
    """The statement, seeing only the tenant's rows of the table."""
    return statement.where(table.c.tenant == tenant)
