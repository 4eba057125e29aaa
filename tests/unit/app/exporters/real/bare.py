"""Packages without what they start when they are imported: servers, kernels of a GPU. Their modules are imported by name."""

from __future__ import annotations

import sys
import types
from importlib.util import find_spec
from pathlib import Path


def bare(*names: str) -> None:
    """Register packages by their folders alone, outer ones first."""
    for name in names:
        outer, _, own = name.rpartition(".")
        if outer in sys.modules:
            folders = [str(Path(folder) / own) for folder in sys.modules[outer].__path__]
        else:
            spec = find_spec(name)
            assert spec is not None and spec.submodule_search_locations is not None
            folders = list(spec.submodule_search_locations)
        package = types.ModuleType(name)
        package.__path__ = folders
        sys.modules[name] = package
