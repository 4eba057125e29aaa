"""Shared by the tests of docs and others: ROOT, page."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")
