"""Whose rows a query sees. Every query of a table with a ``tenant`` column goes through here, and only through here.

What another tenant owns does not exist for the one who asks: endpoints answer 404, never 403.
"""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import Delete, Select, Table, Update

Scoped = TypeVar("Scoped", Select[Any], Update, Delete)


def owned(statement: Scoped, table: Table, tenant: str) -> Scoped:
    """The statement, seeing only the tenant's rows of the table."""
    return statement.where(table.c.tenant == tenant)
