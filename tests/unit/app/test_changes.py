"""Fields of a request that a command line changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.app.base.errors import DocumentError
from meshwright.app.requests.changes import changed_request
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.request import Slo, TrainingRequest
from tests.support.requests_given import resolved, serving


def test_fields_are_set_by_path_in_yaml_and_the_last_counts() -> None:
    request = resolved()
    assert isinstance(request, TrainingRequest)
    changed = changed_request(
        request,
        [
            "search.recompute=[none, full]",
            "slo.max_step_time_s=8",
            "search.risk=0.2",
            "search.risk=0.1",
            "cluster.groups.0.nodes=3",
        ],
    )
    group = request.cluster.groups[0]
    assert changed == replace(
        request,
        search=replace(request.search, recompute=(Recompute.NONE, Recompute.FULL), risk=0.1),
        slo=Slo(max_step_time_s=8.0),
        cluster=replace(request.cluster, groups=(replace(group, nodes=3),)),
    )
    assert changed_request(request, ()) is request


def test_parts_that_a_request_leaves_out_can_be_set() -> None:
    adapted = changed_request(resolved(), ["workload.adapter.rank=16", "search.launcher=trl"])
    assert isinstance(adapted, TrainingRequest) and adapted.workload.adapter is not None
    assert adapted.workload.adapter.rank == 16
    faster = changed_request(resolved(serving()), ["workload.arrivals.requests_per_s=2.5"])
    assert faster.workload.arrivals.requests_per_s == 2.5  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("search.risk", "a change is a path and a value"),
        ("=1", "a change is a path and a value"),
        ("search..risk=1", "a change is a path and a value"),
        ("search.risk.high=1", "a value has no fields"),
        ("cluster.groups.7.nodes=1", "no such entry of a list"),
        ("cluster.groups.first.nodes=1", "allowed: 0 to 0"),
        ("search.rsk=1", "did you mean 'risk'"),
        ("search.risk=high", "search.risk"),
        ("search.recompute=[none", "the value of search.recompute"),
        ("search.risk=!!python/object:os.system {}", "the value of search.risk"),
    ],
)
def test_what_no_request_has_is_refused(change: str, said: str) -> None:
    with pytest.raises((InvalidInputError, DocumentError)) as refused:
        changed_request(resolved(), [change])
    assert said in str(refused.value)
