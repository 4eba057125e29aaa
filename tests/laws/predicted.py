"""What is predicted of a plan is what the plan says."""

from __future__ import annotations

from typing import Any

from meshwright.app.base.solving import predict_here, solve_here
from meshwright.solver.answer.document import record_of
from tests.laws.law import Law
from tests.support.requests_given import resolved
from tests.support.small_requests import DOCUMENTS

FIGURES = ("devices", "predicted", "breakdown", "stages", "workers", "prefill", "decode", "shardings", "calibration")


def is_what_the_plan_says(document: dict[str, Any]) -> None:
    request = resolved(document)
    plan = solve_here(request)
    if not plan.feasible:
        return
    again = predict_here(request, plan)
    assert again.feasible
    found, said = record_of(again), record_of(plan)
    for name in FIGURES:
        assert getattr(found, name, None) == getattr(said, name, None), name
    if again.certificate.unit == plan.certificate.unit:
        assert again.certificate.objective == plan.certificate.objective
    assert again.layout == plan.layout


LAW = Law(
    sentence="What is predicted of a plan is what the plan says.",
    drawn={"document": DOCUMENTS},
    check=is_what_the_plan_says,
    few=4,
    many=60,
    most=350,
    draw_s=0.68,
)
