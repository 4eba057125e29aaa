"""``plan --explain`` and ``predict --explain``."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import OperatorSharding
from meshwright.solver.api import predict, solve
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.problem.search import MAX_TIME_LIMIT_S
from meshwright.solver.training.explain import Excluded, explain
from tests.support.command_line import Cli
from tests.support.flat_plans import flat, with_fields
from tests.support.requests_given import resolved, serving, training


def planned(**search: Any) -> tuple[PlanRequest, Plan]:
    request = resolved(training(search=search))
    return request, solve(request, stop=never_stop, progress=ignore_progress)


@pytest.mark.slow
@pytest.mark.parametrize(
    "search",
    [{"tp": [4], "pp": [1]}, {"tp": [2], "pp": [2]}, {"tp": [2], "cp": [2]}, {"tp": [4], "space": "free"}, {"tp": [1]}],
)
def test_the_plans_own_sharding_costs_what_the_plan_says(search: dict[str, Any]) -> None:
    request, plan = planned(**search)
    for block, operator in (("layer", "qkv_proj"), ("layer", "attn_norm"), ("head", "lm_head")):
        (explanation,) = explain(request, plan, f"{block}/{operator}")
        own = explanation.alternatives[0]
        strategy = next(s.strategy for s in flat(plan).shardings if (s.block, s.operator) == (block, operator))
        assert (own.strategy, own.excluded_by) == (strategy, Excluded.NOTHING)
        assert own.rest_kept is not None and plan.predicted is not None
        assert own.rest_kept.step_time_s == pytest.approx(plan.predicted.step_time_s)
        assert own.rest_kept.peak_memory_bytes == pytest.approx(plan.predicted.peak_memory_bytes)
        assert (own.rest_kept.step_delta_s, own.rest_kept.memory_delta_bytes) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("ways", [[], ["exposed"]])
def test_alternatives_of_the_free_space_cost_what_predicting_them_says(ways: list[str]) -> None:
    request, plan = planned(tp=[4], space="free", tp_overlap=ways)
    (explanation,) = explain(request, plan, "layer/down_proj")
    assert plan.predicted is not None and plan.predicted.step_time_s is not None
    priced = [other for other in explanation.alternatives[1:] if other.rest_kept is not None]
    assert {explanation.alternatives[0].strategy, *(other.strategy for other in priced)} == {
        "replicate",
        "seq",
        "ffn",
        "hidden",
    }
    for other in priced:
        shardings = tuple(
            OperatorSharding(s.block, s.operator, other.strategy if s.operator == "down_proj" else s.strategy)
            for s in flat(plan).shardings
        )
        again = predict(request, with_fields(plan, shardings=shardings))
        assert again.predicted is not None and other.rest_kept is not None and other.block_anew is not None
        assert other.rest_kept.step_time_s == pytest.approx(again.predicted.step_time_s)
        assert other.rest_kept.peak_memory_bytes == pytest.approx(again.predicted.peak_memory_bytes)
        if other.excluded_by is Excluded.DOMINATED:
            # Beside the buffers of chunks the rest of a block can't always be kept for want of memory.
            assert other.block_anew.step_time_s <= other.rest_kept.step_time_s * (1 + 1e-9) or not again.feasible
            # The plan is the best of this space.
            assert other.block_anew.step_time_s >= plan.predicted.step_time_s * (1 - 1e-9)


def test_every_constraint_is_named() -> None:
    request, plan = planned(tp=[4], pp=[1])
    (projection,) = explain(request, plan, "layer/o_proj")
    reasons = {other.strategy: other.excluded_by for other in projection.alternatives}
    assert reasons["hidden"] is Excluded.LAUNCHER and reasons["replicate"] is Excluded.LAUNCHER
    assert reasons["head_dim"] is Excluded.MEANING and reasons["batch"] is Excluded.MEANING
    (attention,) = explain(request, plan, "layer/attention")
    assert "cp" in next(other.why for other in attention.alternatives if other.strategy == "seq")


def test_a_dim_that_does_not_divide_is_said_with_its_size() -> None:
    only = {"tp": [4], "pp": [1], "cp": [1], "microbatch": [1], "zero_stages": [1], "recompute": ["none"], "space": "free"}
    document = training(search=only, model={"catalog": "gpt2-xl"})
    document["workload"] = document["workload"] | {"seq_len": 1024}
    request = resolved(document)
    (explanation,) = explain(request, solve(request, stop=never_stop, progress=ignore_progress), "layer/attention")
    heads = next(other for other in explanation.alternatives if other.strategy == "heads")
    assert heads.excluded_by is Excluded.DIVISIBILITY and "25" in heads.why and heads.rest_kept is None


def test_what_shares_its_weight_is_said_to_be_tied() -> None:
    only = {"tp": [2], "pp": [1], "cp": [1], "microbatch": [1], "zero_stages": [1], "recompute": ["none"], "space": "free"}
    document = training(search=only, model={"catalog": "gpt2-xl"})
    document["workload"] = document["workload"] | {"seq_len": 1024}
    request = resolved(document)
    plan = solve(request, stop=never_stop, progress=ignore_progress)
    (explanation,) = explain(request, plan, "head/lm_head")
    tied = [other for other in explanation.alternatives if other.excluded_by is Excluded.TIED]
    assert tied and all("embedding/embed" in other.why for other in tied)


def test_the_page_and_the_document_hold_the_explanation(cli: Cli) -> None:
    request = cli.write("request.json", training(search={"tp": [4]}))
    assert cli("plan", request, "--explain", "layer/down_proj", "-o", str(cli.folder / "plan.json")) == 0
    assert "Why layer/down_proj is sharded by 'ffn' over tp 4" in cli.out
    assert max(map(len, cli.out.splitlines())) <= 80
    assert cli("predict", request, "--plan", str(cli.folder / "plan.json"), "--explain", "down_proj", "--json") == 0
    (explanation,) = cli.json()["explanations"]
    assert (explanation["block"], explanation["operator"], explanation["tp"]) == ("layer", "down_proj", 4)
    assert explanation["alternatives"][0]["excluded_by"] == "nothing"
    assert {"strategy", "excluded_by", "why", "rest_kept", "block_anew"} == set(explanation["alternatives"][1])
    assert cli("plan", request, "--json") == 0 and "explanations" not in cli.json()


def test_an_unknown_operator_is_exit_2_with_the_list_and_nothing_is_solved(cli: Cli) -> None:
    request = cli.write("request.json", training())
    assert cli("plan", request, "--explain", "nothing") == 2
    assert "layer/o_proj" in cli.err and "head/lm_head" in cli.err
    assert "planning" not in cli.out
    assert cli("plan", cli.write("serving.json", serving()), "--explain", "o_proj") == 2
    assert "tp 2 x pp 2" in cli.err


def test_layouts_of_a_serving_request_are_explained(cli: Cli) -> None:
    # However slow the machine, and whatever it has to compile, no limit ends one of the two searches.
    search = {"tp": [1, 2], "pp": [1], "time_limit_s": MAX_TIME_LIMIT_S}
    request = cli.write("serving.json", serving(search=search))
    assert cli("plan", request, "--explain", "layouts") == 0
    assert "Why these layouts are, or are not, the plan" in cli.out
    assert max(map(len, cli.out.splitlines())) <= 80
    assert cli("plan", request, "--explain", "tp 2", "--json") == 0
    (explanation,) = cli.json()["explanations"]
    assert (explanation["layout"], explanation["devices"]) == ("tp 2", 2)
