"""The checker judges predictions of measured runs: a row whose prediction it refuses says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.evidence.training import prediction
from meshwright.app.evidence.training.prediction import costed_run, refusal
from meshwright.app.evidence.training.scores import score_run
from tests.unit.app.validation.tables import measured

REFUSED = "the checker refuses the prediction: "


def test_a_run_that_no_plan_is_says_why(tmp_path: Path) -> None:
    scored = score_run(measured(tmp_path, flash_attention="0", cp="2", tp="2"))
    assert scored.prediction is None
    assert scored.reason == f"{REFUSED}sequence at plan.axes.cp: the model has no attention to split over the sequence"


@pytest.mark.parametrize("factor", [-1.0, 0.5, float("nan")])
def test_a_wrong_step_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    evaluated = prediction.evaluate_decision

    def wrong(*given: Any) -> Any:
        cost = evaluated(*given)
        return replace(cost, step_time_s=factor * cost.step_time_s)

    row = measured(tmp_path)
    assert score_run(row).prediction is not None
    monkeypatch.setattr(prediction, "evaluate_decision", wrong)
    scored = score_run(row)
    assert scored.prediction is None and scored.reason is not None and scored.reason.startswith(REFUSED)


def test_a_run_without_room_is_predicted(tmp_path: Path) -> None:
    row = measured(tmp_path, tp="1", pp="1", dp="8", recompute="none")
    scored = score_run(row)
    assert scored.prediction is not None and not scored.prediction.fits
    assert refusal(costed_run(row.run)) is None
