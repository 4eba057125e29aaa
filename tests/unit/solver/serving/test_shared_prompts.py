"""Workers whose ranks share the tokens of prompts (cp), and repeat those of answers: step times, memory, engines, search and
checker."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.app.launching.exporters import export
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.split_dims import RankGrid
from meshwright.costmodels.queueing.simulation.replica import Scheduling
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.speculation import Draft, DraftMethod, Speculation
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest, Slo
from meshwright.solver.problem.search import Search
from meshwright.solver.serving import plan_serving, predict_serving
from meshwright.solver.serving.engines.engine import Engine, EngineBuilder
from meshwright.solver.serving.engines.layouts import ServedShape, Tokens, layouts, prefill_layouts, runs, worker_layouts
from meshwright.solver.serving.promise import evaluation as one_layout
from meshwright.solver.serving.promise.candidates import Candidate
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.serving_layouts import pools_of, replicas_of
from tests.unit.solver.serving.enumeration import best_objective
from tests.unit.solver.serving.requests import cluster, serving_request
from tests.unit.solver.verify.changes import changed

POOLS = Search(modes=(ServingMode.DISAGGREGATED,), engine=ServingEngine.SGLANG, pp=(1,))

pytestmark = pytest.mark.usefixtures("short_simulations")


@pytest.fixture(autouse=True)
def _few_batch_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_layout, "STEP_TOKENS", (1024, 8192))
    monkeypatch.setattr(one_layout, "SEQUENCES", (4, 16))


def asked(
    *, search: Search = POOLS, model_name: str = "llama-3.1-8b", objective: Objective = Objective.DEVICES
) -> ServingRequest:
    return serving_request(
        rate=0.7, prompt=16000, output=100, ttft_ms=730.0, tpot_ms=15.0, search=search, model_name=model_name,
        objective=objective, on=cluster(per_node=4),
    )  # fmt: skip


def plan(request: ServingRequest) -> Plan:
    answer = plan_serving(request, stop=never_stop, progress=ignore_progress)
    assert check(answer, request) == ()
    return answer


def engines(request: ServingRequest) -> dict[str, Engine]:
    builder = EngineBuilder(request, sequence_tokens=16100)
    return {layout.name: builder.engine(layout) for layout in prefill_layouts(request)}


def prompt_s(engine: Engine, tokens: float, prefix: float = 0.0) -> float:
    given = {"prompt_tokens": np.array([tokens]), "prefix_tokens": np.array([prefix])}
    return float(engine.times.mixed_step_s(np.zeros(1), 1.0, **given)[0, 0])


@pytest.mark.parametrize("model_name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3"])
def test_ranks_take_their_share_of_a_prompt_and_gather_its_keys(model_name: str) -> None:
    found = engines(asked(model_name=model_name))
    whole, two, four = found["tp 1"], found["tp 1 x cp 2"], found["tp 1 x cp 4"]
    for prefix in (0.0, 8192.0):
        times = [prompt_s(engine, 8192.0, prefix) for engine in (whole, two, four)]
        assert times[0] > times[1] > times[2]
        assert times[2] > times[0] / 8.0
    if model_name == "llama-3.1-8b":
        # No faster than a quarter of the prompt alone, whose keys nobody gathers and whose attention sees no more than itself.
        # Of experts each rank has fewer columns than one rank alone.
        assert prompt_s(four, 8192.0) > prompt_s(whole, 2048.0)


def test_weights_are_on_every_rank_and_so_is_the_cache() -> None:
    found = engines(asked())
    whole, four = found["tp 1"], found["tp 1 x cp 4"]
    assert four.needs[0].weights_bytes == whole.needs[0].weights_bytes
    assert four.needs[0].cache == whole.needs[0].cache
    assert four.needs[0].token_bytes < whole.needs[0].token_bytes
    experts = engines(asked(model_name="qwen3-30b-a3b"))
    assert experts["tp 1 x cp 4 x ep 4"].needs[0].weights_bytes < 0.5 * experts["tp 1"].needs[0].weights_bytes


def test_who_shares_prompts() -> None:
    shared = [layout.grid.cp for layout in layouts(asked(), Tokens.SHARED)]
    assert set(shared) == {2, 4}
    for engine in (ServingEngine.VLLM, ServingEngine.TENSORRT_LLM):
        assert not list(layouts(asked(search=replace(POOLS, engine=engine)), Tokens.SHARED))
    states = ServedShape(heads=32, kv_heads=8, experts=0, expert_ffn=0, states=True, block=1)
    assert not runs(ServingEngine.SGLANG, RankGrid(cp=2), states)
    assert runs(ServingEngine.SGLANG, RankGrid(cp=2), replace(states, states=False))
    assert {layout.grid.cp for layout in prefill_layouts(asked(search=replace(POOLS, cp=(2,))))} == {2}
    with pytest.raises(WorkloadError, match="restrictions of training"):
        plan(asked(search=Search(cp=(2,))))
    with pytest.raises(WorkloadError, match="no worker shares"):
        plan(asked(search=replace(POOLS, cp=(2,), engine=ServingEngine.VLLM)))


@pytest.mark.parametrize("objective", [Objective.DEVICES, Objective.ENERGY])
def test_the_search_finds_what_enumeration_finds(objective: Objective) -> None:
    request = asked(objective=objective)
    answer = plan(request)
    assert answer.certificate.objective == best_objective(request, found=None)
    pools = pools_of(answer)
    if objective is Objective.DEVICES:
        assert pools.prefill.axes.cp > 1
        without = plan(asked(search=replace(POOLS, cp=(1,))))
        assert not without.feasible or answer.devices < without.devices


def test_a_plan_predicts_itself_and_each_of_its_rules_can_be_broken() -> None:
    request = asked()
    answer = plan(request)
    pools = pools_of(answer)
    pool = pools.prefill
    again = predict_serving(request, answer)
    assert again.predicted == answer.predicted and pools_of(again).prefill == pool

    def rules(broken: Plan, search: Search = POOLS) -> set[Rule]:
        return {violation.rule for violation in check(broken, replace(request, search=search))}

    assert Rule.LAUNCHER in rules(answer, replace(POOLS, engine=ServingEngine.VLLM))
    assert Rule.SEARCH in rules(answer, replace(POOLS, cp=(1,)))
    assert Rule.DEVICES in rules(changed(answer, "layout.prefill.axes.cp", 8))
    assert Rule.AXES in rules(changed(answer, "layout.decode.axes.cp", 2))


BOTH = Search(engine=ServingEngine.SGLANG, cp=(1, 2, 4))


def answers(engine: Engine, sequences: float, kv_tokens: float = 4000.0) -> float:
    return float(engine.times.decode_step_s(np.array([sequences]), kv_tokens)[0, 0])


def workers(request: ServingRequest) -> dict[str, Engine]:
    builder = EngineBuilder(request, sequence_tokens=16100)
    return {layout.name: builder.engine(layout) for layout in worker_layouts(request)}


@pytest.mark.parametrize("sequences", [1.0, 16.0, 200.0])
def test_every_group_of_ranks_runs_all_answers(sequences: float) -> None:
    found, prompts = workers(asked(search=BOTH)), engines(asked())
    for name in ("tp 1 x cp 2", "tp 1 x cp 4", "tp 2 x cp 2"):
        alone = found[name.split(" x cp")[0]]
        # Of a dense model a step of answers is that of one such group by itself, a step of prompts that of prefill workers.
        assert answers(found[name], sequences) == pytest.approx(answers(alone, sequences), rel=1e-9)
        assert prompt_s(found[name], 8192.0, 8192.0) == prompt_s(prompts[name], 8192.0, 8192.0)
        # A step that held both would be repeated whole.
        scheduling = [Candidate(engine, 1024, 16).limits.scheduling for engine in (found[name], prompts[name])]
        assert scheduling == [Scheduling.CHUNKS_FIRST, Scheduling.CHUNKED_PREFILL]
        assert answers(prompts[name], sequences) != pytest.approx(answers(alone, sequences), rel=1e-3)
    assert not [name for name in workers(asked(search=replace(BOTH, cp=()))) if "cp" in name]


def test_experts_see_an_answer_once_however_many_groups_repeat_it() -> None:
    found = workers(asked(search=BOTH, model_name="qwen3-30b-a3b"))
    repeated, split = (answers(found[name], 64.0) for name in ("tp 1 x cp 4 x ep 4", "tp 1 x attention dp 4 x ep 4"))
    # Attention groups bring 64 sequences each.
    assert repeated < split


def test_a_step_of_many_answers_has_room_on_every_rank() -> None:
    found = workers(asked(search=BOTH))["tp 1 x cp 4"]
    few, many = (found.kv_tokens(step_tokens=512, sequences=sequences) for sequences in (16, 512))
    stage = found.needs[0]
    chosen_bytes = 496 * stage.logits * found.memory.logit_bytes
    lost = (512 * stage.answer_bytes + chosen_bytes - 512 * stage.token_bytes) / stage.cache.per_token
    assert stage.answer_bytes > stage.token_bytes
    assert few - many == pytest.approx(lost, abs=32)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("objective", [Objective.DEVICES, Objective.ENERGY, Objective.THROUGHPUT])
def test_workers_of_both_phases_are_searched_as_enumeration_says(objective: Objective) -> None:
    request = asked(search=BOTH, objective=objective)
    answer = plan(request)
    assert best_objective(request, found=answer.certificate.objective) == pytest.approx(answer.certificate.objective, rel=1e-12)
    assert predict_serving(request, answer).predicted == answer.predicted


def test_shared_prompts_keep_a_promise_that_tensor_parallelism_does_not() -> None:
    """Long prompts and few answers: each of four ranks computes a quarter, where tp waits for its all-reduces."""
    request = replace(asked(search=replace(BOTH, cp=(2, 4))), slo=Slo(p95_ttft_ms=470.0, confidence=0.5))
    answer, without = plan(request), plan(replace(request, search=replace(BOTH, cp=())))
    assert replicas_of(answer).axes.cp > 1
    assert not without.feasible

    def rules(broken: Plan, search: Search) -> set[Rule]:
        return {violation.rule for violation in check(broken, replace(request, search=search))}

    assert Rule.SEARCH in rules(answer, replace(BOTH, cp=()))
    assert Rule.LAUNCHER in rules(answer, replace(request.search, engine=ServingEngine.VLLM))
    assert Rule.DEVICES in rules(changed(answer, "layout.axes.cp", 8), replace(BOTH, cp=(8,)))
    drafted = Speculation(2, 0.8, Draft(DraftMethod.MTP, relative_cost=0.02))
    with pytest.raises(WorkloadError, match="without ranks that share prompts"):
        plan(replace(request, workload=replace(request.workload, speculation=drafted)))  # type: ignore[arg-type]
    told = export(answer, request, "sglang")
    assert "--attn-cp-size" in told.command and "--enable-mixed-chunk" not in told.command
