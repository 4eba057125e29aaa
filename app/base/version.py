"""The installed version of Meshwright."""

from functools import cache


@cache
def installed_version() -> str:
    """Return the version that is installed; reading it takes milliseconds, which commands that need none do not spend."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("meshwright")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"
