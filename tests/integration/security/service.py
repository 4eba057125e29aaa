"""Shared by the tests of service and others: header."""

from __future__ import annotations

from meshwright.app.base.settings import Settings
from meshwright.app.edge.keys import KeyWish, create_key
from meshwright.app.store.engine import open_engine
from meshwright.app.store.principal import Scope
from meshwright.app.store.security import KeyRepository


def header(settings: Settings, *scopes: Scope, tenant: str = "acme") -> dict[str, str]:
    """Return the header that shows a new key of a tenant."""
    engine = open_engine(settings.database_url)
    made = create_key(KeyRepository(engine), KeyWish(tenant, "test", frozenset(scopes)))
    engine.dispose()
    return {"authorization": f"Bearer {made.text}"}
