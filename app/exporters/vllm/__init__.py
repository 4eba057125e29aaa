"""vLLM: a plan of replicas, of prefill and decode servers, or of several kinds of workers as commands."""

from __future__ import annotations

from meshwright.app.exporters.export import Export
from meshwright.app.exporters.vllm.kinds import export_kinds
from meshwright.app.exporters.vllm.pools import export_pools
from meshwright.app.exporters.vllm.server import export_replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import ServingRequest


def export_plan(plan: Plan, request: ServingRequest) -> Export:
    """Commands of one kind of worker, of several kinds, or of a prefill and a decode server."""
    if plan.kinds:
        return export_kinds(plan, request)
    return export_replicas(plan, request) if plan.prefill is None else export_pools(plan, plan.prefill, request)
