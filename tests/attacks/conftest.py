"""The fixtures of the app's tests, for those that attack it."""

from tests.conftest import cli, client, postgresql, settings, solver

__all__ = ["cli", "client", "postgresql", "settings", "solver"]
