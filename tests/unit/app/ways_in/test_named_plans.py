"""Plans by the names that answers give others: the search that a name says holds the plan of that name, and no other mesh."""

from __future__ import annotations

import re
from typing import Any

import pytest

from meshwright.app.base.solving import solve_here
from meshwright.app.requests.named_plans import names_of, request_of_name
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.search.best_first import search
from meshwright.solver.training.space.candidates import summary
from tests.attacks.planned import SERVED, TRAINED
from tests.support.planned_documents import answered

SMALL: dict[str, Any] = {**TRAINED, "cluster": "8xH100", "search": {"pp": [1, 2, 4], "cp": [1, 2], "microbatch": [1, 2]}}
EXPERTS: dict[str, Any] = {
    **TRAINED,
    "model": {"catalog": "mixtral-8x7b"},
    "cluster": "16xH100",
    "search": {"tp": [2, 4], "pp": [1, 2], "cp": [1], "microbatch": [1]},
}
FREE: dict[str, Any] = {
    **SMALL,
    "search": {
        **SMALL["search"],
        "space": "free",
        "schedules": ["gpipe", "zb-h1", "interleaved-1f1b"],
        "recompute_layers": [2],
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("document", [SMALL, EXPERTS, FREE], ids=["dense", "experts", "free"])
def test_a_name_gives_the_plan_of_that_name(document: dict[str, Any]) -> None:
    found = answered(document)
    names = [name for name in dict.fromkeys(names_of(found.plan)) if name.startswith("dp ")]
    assert len(names) >= 2
    for name in names:
        narrowed = request_of_name(found.request, name)
        assert isinstance(narrowed, TrainingRequest)
        best = search(narrowed, TrainingCosts(narrowed), stop=never_stop, progress=ignore_progress).best
        told = {runner.summary: runner.objective for runner in found.plan.runners_up}
        if best is None:
            assert told.get(name) is None, "only plans that do not fit have none"
            continue
        assert degrees(summary(best.decision.candidate)) == degrees(name)
        if told.get(name) is not None:
            assert best.value <= told[name] * (1 + 1e-9)


def degrees(name: str) -> list[tuple[str, str]]:
    return re.findall(r"\b(dp|tp|pp|cp|ep|micro-batch) (\d+)", name)


@pytest.mark.slow
def test_a_serving_name_says_the_degrees_of_a_worker_and_how_many() -> None:
    request = resolve_request(SERVED | {"search": {"launcher": "vllm"}}, files=NoFiles())
    narrowed = request_of_name(request, "2 replicas of tp 2 x pp 2")
    assert narrowed is not None
    found = narrowed.search
    assert (found.dp, found.tp, found.pp, found.kvp, found.attention_dp) == ((2,), (2,), (2,), (1,), (1,))
    plan = solve_here(narrowed)
    assert not plan.feasible or plan.devices == 8
    wide = request_of_name(request, "tp 1 x attention dp 8 x ep 8")
    assert wide is not None and (wide.search.attention_dp, wide.search.ep, wide.search.dp) == ((8,), (8,), ())


@pytest.mark.parametrize(
    "name",
    [
        "replicas by node group",
        "2 x tp 4 prefill + 3 x tp 2 decode",
        "8 devices: dp 1, tp 8, pp 1, cp 1, ZeRO-1",
        "",
        "tp x",
        "dp",
    ],
)
def test_names_that_no_restriction_says_are_not_read(name: str) -> None:
    for document in (SMALL, SERVED):
        assert request_of_name(resolve_request(document, files=NoFiles()), name) is None
