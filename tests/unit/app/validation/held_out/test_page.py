"""The page of accuracy shows the bands that plans print."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.app.validation.held_out.tables import error_model_cells
from meshwright.solver.training.report.whole_steps import ASSUMED_FRAMEWORK, KNOWN_FRAMEWORK, StepErrorModel

PAGE = Path(__file__).parents[5] / "docs" / "accuracy.md"


@pytest.mark.parametrize(("name", "model"), [("stated", KNOWN_FRAMEWORK), ("assumed", ASSUMED_FRAMEWORK)])
def test_the_page_has_the_bands_that_ship(name: str, model: StepErrorModel) -> None:
    assert f"| {name} | {error_model_cells(model)} |" in PAGE.read_text(encoding="utf-8")
