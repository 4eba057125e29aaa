"""The fixtures of the app's tests, for those that attack it."""

from tests.conftest import cli, client, migrated, postgresql, settings, solver

__all__ = ["cli", "client", "migrated", "postgresql", "settings", "solver"]
