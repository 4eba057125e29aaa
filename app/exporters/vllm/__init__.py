"""vLLM: a plan of replicas, of prefill and decode servers, or of several kinds of workers as commands."""

from __future__ import annotations

from meshwright.app.exporters.export import Export
from meshwright.app.exporters.vllm.kinds import export_kinds
from meshwright.app.exporters.vllm.pools import export_pools
from meshwright.app.exporters.vllm.server import export_replicas
from meshwright.solver.answer.layouts import Kinds, Pools, Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import ServingRequest


def export_plan(plan: Plan, request: ServingRequest) -> Export:
    """Commands of one kind of worker, of several kinds, or of a prefill and a decode server."""
    match plan.layout:
        case Kinds() as layout:
            return export_kinds(plan, layout, request)
        case Pools() as layout:
            return export_pools(plan, layout, request)
        case Replicas() as layout:
            return export_replicas(plan, layout.workers, request)
        case _:
            raise AssertionError("no other layout is launchable")
