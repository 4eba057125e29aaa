"""Why layouts of a serving request are not its plan."""

from __future__ import annotations

import pytest

from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.serving import plan_serving
from meshwright.solver.serving.engines.engine import EngineBuilder
from meshwright.solver.serving.engines.layouts import layouts
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.explain import Excluded, LayoutExplanation, explain_layouts, named_layouts
from meshwright.solver.serving.promise.candidates import Candidate
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from tests.unit.solver.serving.requests import serving_request

NARROW = Search(tp=(1, 2), pp=(1, 2))

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")


def explained(request: ServingRequest, name: str = "layouts") -> tuple[Plan, tuple[LayoutExplanation, ...]]:
    plan = plan_serving(request, stop=never_stop, progress=ignore_progress)
    return plan, explain_layouts(request, plan, name)


def test_each_layout_is_told_what_it_misses_and_by_how_much() -> None:
    request = serving_request(rate=9.0, ttft_ms=400.0, tpot_ms=9.0, search=NARROW)
    plan, rows = explained(request)
    assert {row.layout for row in rows} == {layout.name for layout in layouts(request)}
    assert [row.excluded_by for row in rows].count(Excluded.NOTHING) == 1
    assert rows[0].excluded_by is Excluded.NOTHING and rows[0].devices * rows[0].replicas == plan.devices
    missing = [row for row in rows if row.excluded_by in (Excluded.TTFT, Excluded.TPOT)]
    assert missing
    assert [row.excess for row in missing] == sorted(row.excess for row in missing)
    for row in missing:
        assert row.devices * row.replicas <= plan.devices
        assert row.need is not None and row.need == pytest.approx(simulated_ms(request, row))
        assert row.have == (400.0 if row.excluded_by is Excluded.TTFT else 9.0) < row.need


def simulated_ms(request: ServingRequest, row: LayoutExplanation) -> float:
    """The promise that a row says is missed, from a simulation of its own."""
    assert row.max_num_seqs is not None and row.max_num_batched_tokens is not None
    evaluator = Evaluator(request.workload, promised_of(request), request.search.seed)
    layout = next(layout for layout in layouts(request) if layout.name == row.layout)
    engine = EngineBuilder(request, sequence_tokens=evaluator.longest_request).engine(layout)
    candidate = Candidate(engine, row.max_num_batched_tokens, row.max_num_seqs)
    seen = evaluator.measure_fully(candidate, Share(evaluator.traffic.load, row.replicas))
    law, confidence = evaluator.promised.law, request.slo.confidence
    if row.excluded_by is Excluded.TTFT:
        return 1e3 * law.ttft.promised_s(seen.ttft.high, confidence)
    return 1e3 * law.tpot.promised_s(seen.tpot.high, confidence)


def test_memory_and_late_requests_are_told_without_a_plan() -> None:
    plan, rows = explained(serving_request(model_name="llama-3.1-70b", tpot_ms=5.0, search=Search(tp=(1, 4), pp=(1,))))
    assert not plan.feasible
    assert {row.layout: row.excluded_by for row in rows} == {"tp 1": Excluded.MEMORY, "tp 4": Excluded.TPOT}
    assert all(row.need is not None and row.have is not None and row.need > row.have for row in rows)


def test_of_a_goodput_plan_the_next_rate_is_told() -> None:
    request = serving_request(rate=1.0, objective=Objective.THROUGHPUT, search=Search(tp=(2,), pp=(1,)))
    _, (row,) = explained(request, "tp2")
    assert row.excluded_by in (Excluded.TTFT, Excluded.TPOT, Excluded.LOAD)
    assert row.excess < 0.25


def test_a_name_that_no_layout_has_is_refused() -> None:
    request = serving_request(search=NARROW)
    assert [layout.name for layout in named_layouts(request, "TP2 x pp 2")] == ["tp 2 x pp 2"]
    with pytest.raises(PlanFileError, match="tp 2 x pp 2"):
        named_layouts(request, "tp 16")
