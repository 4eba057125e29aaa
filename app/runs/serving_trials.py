"""Trials of a serving request beside the runs that are stored: which plans have run, and whether they kept their targets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Engine

from meshwright.app.calibrations.run_keys import run_group
from meshwright.app.errors import PlanNotFoundError
from meshwright.app.fleet.registry import canonical_digest
from meshwright.app.plans.documents import read_plan_document
from meshwright.app.plans.store import PlanStore
from meshwright.app.requests.resolve import request_document
from meshwright.app.runs.document import RunOutcome
from meshwright.app.runs.repository import RunFilter, RunRepository
from meshwright.solver.answer.layouts import OfWorkers
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import ServingRequest, Slo
from meshwright.solver.serving.trials import ServingPlan, ServingTrial

MOST_LOOKED_AT = 1000
"""The latest runs of a model that are looked at for what has run."""


def under_serving_digests(trials: tuple[ServingTrial, ...]) -> tuple[ServingTrial, ...]:
    """Return the trials whose plans are named by their layouts and the load: runs of two trials are runs of two plans."""
    return tuple(replace(t, plan=replace(t.plan, digest=serving_layout_digest(t.plan, t.request))) for t in trials)


def serving_layout_digest(plan: Plan, request: ServingRequest) -> str:
    """Return ``sha256:<hex>`` of what a plan decides and the load that it is for, whatever is predicted of it."""
    layout = plan.layout
    assert isinstance(layout, OfWorkers), "a feasible serving plan"
    workers = [
        {
            "count": each.count,
            "limits": [each.max_num_seqs, each.max_num_batched_tokens],
            "axes": asdict(each.axes),
            "devices": [asdict(devices) for devices in each.device_ranges],
        }
        for each in layout.all_workers
    ]
    decided = {"kind": plan.kind, "model": plan.model, "form": type(layout).__name__, "workers": workers}
    return canonical_digest(decided | {"shares": list(layout.shares), "workload": request_document(request)["workload"]})


def outcomes_of(request: ServingRequest, engine: Engine) -> Callable[[ServingPlan], bool | None]:
    """Return what says of a plan whether its latest run kept the request's targets, None where none tells."""
    group = run_group(request_document(request))
    assert group is not None, "a resolved request names its hardware"
    wanted = RunFilter(cluster=group.cluster, profile=group.profile, model=request.model.name)
    store, outcomes = PlanStore(engine), dict[str, bool]()
    for run in RunRepository(engine).page(wanted, before=None, limit=MOST_LOOKED_AT):
        kept = _has_kept(json.loads(run.run), request.slo)
        if kept is not None:
            outcomes.setdefault(_digest_of(run.plan, store), kept)
    return lambda each: outcomes.get(serving_layout_digest(each.plan, each.request))


def _digest_of(digest: str, store: PlanStore) -> str:
    """The digest by layout of a plan that ran; that of a trial's plan, which is in its file, is one already."""
    try:
        answered = read_plan_document(json.loads(store.get(digest)))
    except PlanNotFoundError:
        return digest
    if not isinstance(answered.request, ServingRequest):
        return digest
    return serving_layout_digest(answered.plan, answered.request)


def _has_kept(run: Mapping[str, Any], slo: Slo) -> bool | None:
    """True of a run below all targets, False of one above a target or out of memory, None where a figure is missing."""
    if run["outcome"] == RunOutcome.OUT_OF_MEMORY:
        return False
    kept: list[bool | None] = []
    for name, target_ms in (("ttft_p95_s", slo.p95_ttft_ms), ("tpot_p95_s", slo.p95_tpot_ms)):
        if target_ms is not None:
            kept.append(run[name] <= target_ms / 1e3 if name in run else None)
    return False if False in kept else None if None in kept else True
