"""The page of models is what the catalogue and the importers hold."""

from __future__ import annotations

from pathlib import Path

from benchmarks import models_page


def test_page_of_the_models_is_the_catalogues() -> None:
    assert Path("docs/models.md").read_text(encoding="utf-8") == models_page.page()
