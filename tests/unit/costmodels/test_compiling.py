"""Compiled functions on disk are used again, and never instead of what the sources say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.costmodels import compiling

KERNEL = """
from typing import NamedTuple

from meshwright.costmodels.compiling import kept_compiled
from {package}.callee import added


class Pair(NamedTuple):
    a: int
    b: int


@kept_compiled
def total(pair):
    return added(pair.a, pair.b)


if __name__ != "__main__":
    print(total(Pair(2, 3)), sum(total.stats.cache_hits.values()))
"""
CALLEE = """
from meshwright.costmodels.compiling import kept_compiled


@kept_compiled
def added(a, b):
    return a {sign} b
"""


def write(folder: Path, *, sign: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").touch()
    (folder / "kernel.py").write_text(KERNEL.format(package=folder.name))
    (folder / "callee.py").write_text(CALLEE.format(sign=sign))


def said(folder: Path) -> tuple[int, int]:
    """The result of the kernel in a new process, and how often it was found on disk."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    environment["PYTHONPATH"] = str(folder.parent)
    code = f"import {folder.name}.kernel"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    result, hits = ran.stdout.split()
    return int(result), int(hits)


@pytest.mark.slow
def test_a_compiled_function_is_kept_until_one_that_it_calls_changes(tmp_path: Path) -> None:
    write(tmp_path / "before", sign="+")
    assert [said(tmp_path / "before") for _ in range(2)] == [(5, 0), (5, 1)]
    write(tmp_path / "before", sign="-")
    assert said(tmp_path / "before") == (-1, 0)


@pytest.mark.slow
def test_what_is_kept_of_a_package_of_another_name_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "before", sign="+")
    said(tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    write(tmp_path / "after", sign="+")
    assert list((tmp_path / "after" / "__pycache__").glob("*.nbi"))
    assert said(tmp_path / "after") == (5, 0)


def test_a_function_of_another_floor_is_named_by_the_cost_models_that_it_may_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def name_with(models: str) -> str:
        def kernel() -> None:
            """A function of the solver."""

        kernel.__module__ = "meshwright.solver.stages.layers"
        here = Path(compiling.__file__).parent
        monkeypatch.setattr(compiling, "_sources_digest", lambda folder: models if folder == here else "the solver's own")
        return compiling.named_by_sources(kernel).__qualname__

    assert name_with("before") == name_with("before")
    assert name_with("before") != name_with("after")
