"""Shared by the tests of layout of and others: request_of, planned."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from meshwright.solver.answer.layouts import Kinds, Pools, Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.serving import plan_serving
from tests.unit.solver.serving.requests import cluster, serving_request


def request_of(form: type) -> ServingRequest:
    """A request whose best plan has a form."""
    degrees = {"tp": (1, 2), "pp": (1, 2)}
    if form is Replicas:
        return serving_request(search=Search(**degrees))
    if form is Pools:
        return serving_request(
            rate=9.0, ttft_ms=400.0, tpot_ms=12.0, search=Search(**degrees, modes=(ServingMode.DISAGGREGATED,))
        )
    if form is not Kinds:
        search = Search(**degrees, modes=(ServingMode(form.__name__.lower()),))
        return serving_request(rate=0.1, ttft_ms=120_000.0, tpot_ms=None, on=cluster(node="l4-pcie"), search=search)
    old, new = (cluster(node=node, name=name, per_node=2) for node, name in (("dgx-a100", "old"), ("dgx-h100", "new")))
    both = replace(old, groups=(*old.groups, *new.groups))
    return serving_request(rate=24.0, ttft_ms=400.0, tpot_ms=25.0, on=both, search=Search(**degrees, worker_kinds=2))


@cache
def planned(form: type) -> Plan:
    return plan_serving(request_of(form), stop=never_stop, progress=ignore_progress)
