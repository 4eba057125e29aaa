"""SGLang: a plan of replicas, or of prefill and decode servers with their router, as commands."""

from __future__ import annotations

from meshwright.app.exporters.export import Export
from meshwright.app.exporters.sglang.pools import export_pools
from meshwright.app.exporters.sglang.server import export_replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import ServingRequest


def export_plan(plan: Plan, request: ServingRequest) -> Export:
    """Commands of one kind of worker, or of a prefill and a decode server with their router."""
    return export_replicas(plan, request) if plan.prefill is None else export_pools(plan, plan.prefill, request)
