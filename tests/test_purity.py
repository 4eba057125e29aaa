"""The solver and the cost models are pure, in ways that the contract on imports in pyproject.toml can't see."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

HIDDEN = ("__import__(", "import_module(", ".environ", "getenv(")
"""Ways around an import statement, and to the environment."""


@pytest.mark.parametrize("package", ["costmodels", "solver"])
def test_nothing_is_read_behind_an_import(package: str) -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / package).rglob("*.py"))}
    assert sources
    found = [f"{path.relative_to(ROOT)}: {hidden}" for path, text in sources.items() for hidden in HIDDEN if hidden in text]
    assert not found
