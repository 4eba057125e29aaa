"""Alembic migrations of the plan store; run them with ``meshwright migrate``."""
