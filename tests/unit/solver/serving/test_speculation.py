"""Plans of engines that verify drafted tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.errors import ModelError, WorkloadError
from meshwright.costmodels.serving.speculation import Draft, DraftMethod, Speculation
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import FrontierScope
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.serving import predict_serving
from meshwright.solver.serving.engines.engine import EngineBuilder
from meshwright.solver.serving.engines.layouts import layouts
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.planning import plan_serving, simulate_serving
from meshwright.solver.serving.promise.candidates import Candidate
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.serving_layouts import replicas_of
from tests.unit.costmodels.serving_models import MAMBA
from tests.unit.solver.serving.requests import serving_request
from tests.unit.solver.verify.changes import changed

DRAFT_BYTES = 1e9


def speculative(
    request: ServingRequest, *, draft_tokens: int = 4, acceptance: float = 0.7, cost: float = 0.05, memory: float = DRAFT_BYTES
) -> ServingRequest:
    draft = Draft(DraftMethod.EAGLE, relative_cost=cost, memory_bytes=memory)
    return replace(request, workload=replace(request.workload, speculation=Speculation(draft_tokens, acceptance, draft)))


def planned(request: ServingRequest) -> Plan:
    return plan_serving(request, stop=never_stop, progress=ignore_progress)


REQUEST = speculative(serving_request(rate=8.0, tpot_ms=12.0, output=200))


def candidate(request: ServingRequest, *, step_tokens: int = 2048, sequences: int = 64) -> tuple[Evaluator, Candidate]:
    evaluator = Evaluator(request.workload, promised_of(request), request.search.seed)
    builder = EngineBuilder(request, sequence_tokens=evaluator.longest_request)
    return evaluator, Candidate(builder.engine(next(iter(layouts(request)))), step_tokens, sequences)


def test_a_plan_passes_the_checker_and_is_predicted_and_simulated_alike() -> None:
    plan = planned(REQUEST)
    assert check(plan, REQUEST) == ()
    again = predict_serving(REQUEST, plan)
    assert (again.predicted, again.layout) == (plan.predicted, plan.layout)
    assert plan.predicted is not None and plan.predicted.tpot_p95_s is not None
    simulated = simulate_serving(REQUEST, plan)
    assert simulated.tpot is not None and simulated.tpot.p95.value == plan.predicted.tpot_p95_s
    # Tokens are counted whole, not rounds.
    assert simulated.output_tokens_per_s == pytest.approx(8.0 * 200, rel=0.05)


def test_good_proposals_save_devices_and_dear_ones_do_not() -> None:
    plain = planned(serving_request(rate=8.0, tpot_ms=12.0, output=200))
    assert planned(REQUEST).devices < plain.devices <= planned(speculative(REQUEST, cost=0.5)).devices


def test_the_same_request_gives_the_same_plan() -> None:
    assert planned(REQUEST) == planned(REQUEST)


def test_bounds_hold_for_rounds_of_several_tokens() -> None:
    for acceptance in (0.0, 0.7, 1.0):
        evaluator, given = candidate(speculative(REQUEST, acceptance=acceptance))
        assert evaluator.rate_bound(given) >= evaluator.capacity(given)
        alone = evaluator.alone(given.engine, given.step_tokens)
        measured = evaluator.measure_fully(given, Share(0.2))
        assert 0.5 * measured.tpot.value < alone.tpot_s <= measured.tpot.value
        assert alone.ttft_s <= measured.ttft.value


def test_the_tables_verify_all_proposals_of_a_sequence() -> None:
    plain = candidate(serving_request())[1].engine.times
    verified = candidate(speculative(serving_request(), cost=0.0))[1].engine.times
    one, several = plain.decode_step_s([1.0, 32.0], 2000.0)[0], verified.decode_step_s([1.0, 32.0], 2000.0)[0]  # type: ignore[arg-type]
    # A few sequences read the same weights and caches; many compute five times as much, but read no more.
    assert 1.0 <= several[0] / one[0] < 1.1
    assert several[0] / one[0] < several[1] / one[1] < 5.0


def test_drafts_take_memory_and_their_proposals_room_in_the_cache() -> None:
    (_, plain), (_, drafting) = candidate(serving_request()), candidate(speculative(serving_request()))
    (needs,), (more,) = plain.engine.needs, drafting.engine.needs
    assert more.weights_bytes - needs.weights_bytes == DRAFT_BYTES
    held = drafting.engine.kv_tokens(step_tokens=2048, sequences=64)
    assert drafting.limits.kv_tokens == held - 64 * 4 and held < plain.limits.kv_tokens


def test_the_checker_counts_the_draft_by_itself() -> None:
    plan = planned(REQUEST)
    few = changed(plan, "layout.load.max_num_batched_tokens", 5 * replicas_of(plan).load.max_num_seqs - 1)
    assert [violation.rule for violation in check(few, REQUEST)] == [Rule.BATCH]
    heavier = speculative(REQUEST, memory=2e10)
    assert Rule.WEIGHTS in {violation.rule for violation in check(plan, heavier)}
    more_proposals = speculative(REQUEST, draft_tokens=30_000)
    assert Rule.KV_CACHE in {violation.rule for violation in check(plan, more_proposals)}


@pytest.mark.parametrize(
    ("search", "said"),
    [
        (Search(pp=(2,)), "without pipeline stages"),
        (Search(frontier=FrontierScope.SWEPT), "not drawn with speculative decoding"),
    ],
)
def test_what_is_not_planned_with_drafts_is_refused(search: Search, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        planned(replace(REQUEST, search=search))


def test_states_that_cannot_go_back_are_refused() -> None:
    with pytest.raises(ModelError, match="recurrent states"):
        planned(replace(REQUEST, model=read_huggingface_config(MAMBA, name="tiny-jamba")))


@pytest.mark.slow
def test_no_layout_has_pipeline_stages() -> None:
    assert {layout.pp for layout in layouts(REQUEST)} == {1}
    assert "with drafted tokens pp is 1" in planned(REQUEST).certificate.space
    assert "drafted" not in planned(serving_request()).certificate.space
