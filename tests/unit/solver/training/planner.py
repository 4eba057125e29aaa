"""Shared by the tests of planner and others: llama_8b, plan_of."""

from __future__ import annotations

from dataclasses import replace

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.training.planner import plan_training
from meshwright.solver.verify.check import check


def llama_8b(nodes: int = 1, **changes: object) -> TrainingRequest:
    request = TrainingRequest(
        model("llama-3.1-8b"),
        Cluster((NodeGroup("pool", node_type("dgx-h100"), nodes),)),
        TrainingWorkload("training", global_batch=64, seq_len=8192),
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def plan_of(request: TrainingRequest) -> Plan:
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert check(plan, request) == ()
    return plan
