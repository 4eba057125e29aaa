"""The trace of a serving simulation: its slices add up to the utilisation, its requests to what they saw."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from meshwright.app.pictures.drawings import distribution_drawings, load_drawings, over_time_drawings
from meshwright.app.pictures.simulation_trace import simulation_trace, simulation_trace_text
from meshwright.app.requests.plan_documents import answer_document
from meshwright.app.service.load import load_course, own_load
from meshwright.costmodels.errors import InfeasibleError, WorkloadError
from meshwright.solver.api import simulate
from meshwright.solver.problem.request import ServingRequest
from tests.attacks.planned import SERVED, TRAINED
from tests.support.planned_documents import answered


def test_slices_add_up_to_the_utilisation_and_requests_to_their_latency() -> None:
    given = answered(SERVED)
    simulated = simulate(given.request, given.plan)
    events = json.loads(simulation_trace_text(simulated, title="x"))["traceEvents"]
    assert simulated.timeline is not None and simulated.times is not None
    work = [event for event in events if event["ph"] == "X"]
    assert sum(event["dur"] for event in work) / (simulated.timeline.end_s * 1e6) == pytest.approx(simulated.busy, abs=0.02)
    for before, after in pairwise(work):
        assert before["ts"] + before["dur"] <= after["ts"] + 0.01
    spans: dict[tuple[int, str], dict[str, Any]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "be":
            spans[event["id"], event["name"]][event["ph"]] = event
    first = {number: each["e"]["ts"] - each["b"]["ts"] for (number, name), each in spans.items() if name != "answer"}
    times = simulated.times
    for number, took_us in first.items():
        assert took_us == pytest.approx((times.first_s[number] - times.arrival_s[number]) * 1e6, abs=0.01)
        assert spans[number, "answer"]["b"]["ts"] == spans[number, "until the first token"]["e"]["ts"]


def test_a_heavier_load_is_never_faster_and_the_spread_meets_the_percentiles() -> None:
    given = answered(SERVED)
    assert isinstance(given.request, ServingRequest)
    course = load_course({"plan": answer_document(given)})
    assert course["own"] == own_load(given, given.request) == 2.0
    seen = [point["ttft_p95_s"] for point in course["course"]]
    assert seen[-1] > seen[0] and course["unit"] == "requests/s"
    for name in ("ttft", "tpot", "end_to_end"):
        spread = course["spread_s"][name]
        assert list(np.sort(spread)) == spread and len(spread) == 99
    assert course["spread_s"]["ttft"][94] == pytest.approx(course["simulation"]["ttft_s"]["p95"]["value"], rel=0.02)
    titles = [title for draw in (load_drawings, distribution_drawings) for title, _ in draw(course)]
    titles += [title for title, _ in over_time_drawings(course["simulation"])]
    assert len(titles) == 2 + 3 + 2


@pytest.mark.parametrize("arrivals", [{"process": "closed", "concurrency": 6}])
def test_clients_are_whole(arrivals: dict[str, Any]) -> None:
    work = {**SERVED["workload"], "arrivals": arrivals}
    course = load_course({"plan": answer_document(answered({**SERVED, "workload": work}))})
    assert course["unit"] == "clients" and [point["load"] for point in course["course"]] == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_only_plans_that_serve_have_a_load() -> None:
    for ask in (load_course, simulation_trace):
        with pytest.raises(WorkloadError):
            ask({"plan": answer_document(answered(TRAINED))})
        with pytest.raises(InfeasibleError):
            ask({"plan": answer_document(answered({**SERVED, "slo": {"p95_ttft_ms": 1}}))})
