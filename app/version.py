"""The installed version of Meshwright."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("meshwright")
except PackageNotFoundError:  # a source tree that was never installed
    VERSION = "0+unknown"
