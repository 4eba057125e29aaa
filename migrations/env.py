"""Alembic environment: runs inside the transaction that ``app.store.migrate`` opened."""

from __future__ import annotations

from alembic import context

from meshwright.app.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
context.run_migrations()
