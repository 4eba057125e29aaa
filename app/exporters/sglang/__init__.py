"""SGLang: a plan of replicas, or of prefill and decode servers with their router, as commands."""

from __future__ import annotations

from meshwright.app.exporters.export import Export
from meshwright.app.exporters.sglang.pools import export_pools
from meshwright.app.exporters.sglang.server import export_replicas
from meshwright.solver.answer.layouts import Pools, Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import ServingRequest


def export_plan(plan: Plan, request: ServingRequest) -> Export:
    """Commands of one kind of worker, or of a prefill and a decode server with their router."""
    match plan.layout:
        case Pools() as layout:
            return export_pools(plan, layout, request)
        case Replicas() as layout:
            return export_replicas(plan, layout.workers, request)
        case _:
            raise AssertionError("no other layout is launchable")
