"""Bringing a database to the schema of this version, with Alembic; ``migrations/`` holds the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text

from meshwright.app.base.errors import StoreError
from meshwright.app.store.engine import is_sqlite, reading, shown_url, take_all_time, writing

if TYPE_CHECKING:
    from alembic.config import Config

HEAD_REVISION = "0014"
"""Newest migration; a test holds it equal to Alembic's own answer. Kept here so that a check needs no Alembic."""

# Any number that other programs on the same PostgreSQL will hardly take; derived from "meshwright".
_POSTGRESQL_LOCK = 0x6D657368


def current_revision(engine: Engine) -> str | None:
    """Revision the database is at; None for an empty one. Raises StoreError when it can't be asked."""
    with reading(engine) as connection:
        return _revision(connection)


def is_at_head(engine: Engine) -> bool:
    """Return True if the database has the schema of this version."""
    return current_revision(engine) == HEAD_REVISION


def serves(engine: Engine, revision: str | None) -> bool:
    """Return True if this version can work with a database at a revision: its own, or on PostgreSQL a later one.

    In a rolling upgrade the database is migrated first, and processes of the release before go on until they are replaced: a
    migration leaves them what they need. An SQLite file has no other processes to wait for.
    """
    if revision is None or is_sqlite(engine):
        return revision == HEAD_REVISION
    return revision >= HEAD_REVISION


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Migrate up to a revision, in one transaction; processes that migrate at once wait for one another."""
    from alembic import command
    from alembic.util import CommandError

    with writing(engine) as connection:
        _lock(connection)
        try:
            command.upgrade(_config(connection), revision)
        except CommandError as error:
            raise StoreError(_unknown_revision(engine, error)) from error


def downgrade(engine: Engine, revision: str) -> None:
    """Migrate down to a revision ("base" is the empty database), in one transaction."""
    from alembic import command
    from alembic.util import CommandError

    with writing(engine) as connection:
        _lock(connection)
        try:
            command.downgrade(_config(connection), revision)
        except CommandError as error:
            raise StoreError(_unknown_revision(engine, error)) from error


def ensure_ready(engine: Engine) -> None:
    """Bring an SQLite store to this version's schema; for PostgreSQL, raise StoreError unless it is there or beyond already.

    A user's own file is ours to keep in order. A shared database is migrated when its owner says so.
    """
    revision = current_revision(engine)
    if serves(engine, revision):
        return
    if not is_sqlite(engine):
        raise StoreError(
            f"the database {shown_url(engine)} is at revision {revision}, this version needs "
            f"{HEAD_REVISION}: run 'meshwright migrate'"
        )
    upgrade(engine)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return revision


def _config(connection: Connection) -> Config:
    from importlib.resources import files

    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(files("meshwright.migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _lock(connection: Connection) -> None:
    """Let one process migrate at a time: SQLite's BEGIN IMMEDIATE does, PostgreSQL needs an advisory lock."""
    take_all_time(connection)
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _POSTGRESQL_LOCK})


def _unknown_revision(engine: Engine, error: Exception) -> str:
    return (
        f"the database {shown_url(engine)} can't be migrated: {error}. It may come from a newer version of Meshwright: "
        "use that version, or another MESHWRIGHT_DATABASE_URL"
    )
