"""The trace of a step: what its slices add up to is what the plan predicts."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import Any

import pytest

from meshwright.app.pictures.files import Picture, check_pictures
from meshwright.app.pictures.step_timeline import trace_text
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.pipeline_plan import placement_of
from meshwright.solver.answer.plan import AnsweredRequest
from tests.attacks.planned import SERVED, TRAINED
from tests.support.planned_documents import answered

SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-v", "dualpipe")


def trained(**search: Any) -> AnsweredRequest:
    return answered({**TRAINED, "search": {**TRAINED["search"], "space": "free", **search}})


def slices(text: str) -> dict[int, list[dict[str, Any]]]:
    by_stage = defaultdict(list)
    for event in json.loads(text)["traceEvents"]:
        if event["ph"] == "X":
            by_stage[event["pid"]].append(event)
    return by_stage


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_busy_time_of_the_slices_gives_the_bubble_of_the_plan(schedule: str) -> None:
    given = trained(schedules=[schedule])
    text, breakdown = trace_text(given), placement_of(given.plan).breakdown
    assert breakdown is not None and given.plan.predicted is not None and given.plan.predicted.step_time_s is not None
    step_us = given.plan.predicted.step_time_s * 1e6
    busy_us = [sum(event["dur"] for event in of_stage) for of_stage in slices(text).values()]
    assert len(busy_us) == 2
    assert 1 - max(busy_us) / step_us == pytest.approx(breakdown.bubble_s * 1e6 / step_us, abs=1e-6)


@pytest.mark.slow
def test_slices_of_a_stage_do_not_overlap_and_fill_the_predicted_step() -> None:
    given = trained()
    by_stage = slices(trace_text(given))
    for events in by_stage.values():
        for before, after in itertools.pairwise(events):
            assert before["ts"] + before["dur"] <= after["ts"] + 0.002
    assert given.plan.predicted is not None and given.plan.predicted.step_time_s is not None
    end_us = max(events[-1]["ts"] + events[-1]["dur"] for events in by_stage.values())
    assert end_us == pytest.approx(given.plan.predicted.step_time_s * 1e6, rel=0.01)


def test_a_serving_request_has_no_step() -> None:
    with pytest.raises(InvalidInputError, match="no pipeline timeline"):
        check_pictures(resolve_request(SERVED, files=NoFiles()), [Picture.TRACE])
