"""The settings of a command, from its environment."""

from __future__ import annotations

from meshwright.app.base.settings import Settings, read_settings


def environment_settings() -> Settings:
    """Return the settings of the environment; logging starts with them."""
    from meshwright.app.base.logs import start_logging

    settings = read_settings()
    start_logging(settings.log_level, settings.log_format)
    return settings
