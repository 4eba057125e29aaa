"""Taking in a measured run: checked against its plan, stored once, and learned from in the same transaction."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine

from meshwright.app.calibrations.run_keys import run_group
from meshwright.app.db.engine import writing
from meshwright.app.db.idempotency_repository import IdempotencyRepository
from meshwright.app.db.tables.metadata import DEFAULT_TENANT
from meshwright.app.documents.json_text import compact_json
from meshwright.app.errors import DocumentError, FieldError, PlanNotFoundError
from meshwright.app.plans.documents import read_plan_document
from meshwright.app.plans.store import PlanStore
from meshwright.app.requests.resolve import request_document
from meshwright.app.runs.document import FIGURES_OF, MeasuredRun, read_run, run_digest, run_document
from meshwright.app.runs.repository import NewRun, RunRepository, StoredRun
from meshwright.costmodels.version import COST_MODEL_VERSION
from meshwright.solver.answer.plan import AnsweredRequest

FARTHEST = 100.0
"""A figure so many times over or under the predicted one is of another run, or in another unit."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A run that can be stored: what was measured, of which plan."""

    run: MeasuredRun
    row: NewRun


@dataclass(frozen=True, slots=True)
class Observed:
    """The result of storing a run: its row, and whether it is new."""

    row: StoredRun
    is_new: bool


class RunService:
    """One database's runs. Its methods block; call them in threads."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def read(self, document: object, tenant: str = DEFAULT_TENANT) -> Observation:
        """The run of a document, whose plan is stored; raises DocumentError or StoreError."""
        run = read_run(document)
        try:
            text = PlanStore(self._engine, tenant).get(run.plan)
        except PlanNotFoundError as error:
            fault = FieldError("plan", "no plan is stored under this digest", run.plan, None, "plan the request first")
            raise DocumentError("this run can't be used", (fault,)) from error
        return observation(run, read_plan_document(json.loads(text)))

    def add(self, observation: Observation, tenant: str = DEFAULT_TENANT, *, key: str | None = None) -> Observed:
        """Store a run unless it is stored already. ``key`` is the caller's idempotency key.

        Raises KeyReusedError where the key was used for another run, StoreError.
        """
        with writing(self._engine) as connection:
            row, is_new = RunRepository(self._engine, tenant).add_with(connection, observation.row)
            if key is not None:
                self._note(connection, tenant, key, observation)
            return Observed(row, is_new)

    def _note(self, connection: Connection, tenant: str, key: str, observation: Observation) -> None:
        fingerprint = f"sha256:{hashlib.sha256(observation.row.run.encode()).hexdigest()}"
        IdempotencyRepository(self._engine, tenant).note(connection, key, fingerprint, f"run:{observation.row.digest}")


def observation(run: MeasuredRun, answered: AnsweredRequest) -> Observation:
    """The run beside what was predicted of its plan; raises DocumentError where the two can't belong together."""
    plan, request = answered.plan, answered.request
    if not plan.feasible or plan.predicted is None or plan.layout is None:
        raise _fault("plan", "the plan is infeasible: there is nothing to run", run.plan)
    _check_kind(run, plan.kind)
    predicted = _predicted(answered)
    for name, value in run.measured().items():
        _check_near(name, value, predicted.get(name))
    memory_bytes = predicted["device_memory_bytes"]
    if run.peak_memory_bytes is not None and run.peak_memory_bytes > memory_bytes:
        raise _fault("peak_memory_bytes", "a device of the cluster has less memory", str(run.peak_memory_bytes), memory_bytes)
    group = run_group(request_document(request))
    assert group is not None, "a resolved request names its hardware"
    return Observation(
        run,
        NewRun(
            digest=run_digest(run),
            created_at=datetime.now(UTC),
            cluster=group.cluster,
            profile=group.profile,
            model=plan.model,
            plan=run.plan,
            kind=plan.kind,
            outcome=run.outcome.value,
            run=compact_json(run_document(run)),
            predicted=compact_json(predicted | {"cost_model_version": COST_MODEL_VERSION}),
        ),
    )


def _predicted(answered: AnsweredRequest) -> dict[str, Any]:
    """Return the figures that the cost model gives the plan, and the memory of the smallest device."""
    figures = answered.plan.predicted
    assert figures is not None, "the plan is feasible"
    names = FIGURES_OF[answered.plan.kind]
    said = {name: value for name in names if (value := getattr(figures, name)) is not None}
    smallest = min(group.node.device.memory_bytes for group in answered.request.cluster.groups)
    return said | {"device_memory_bytes": smallest}


def _check_kind(run: MeasuredRun, kind: str) -> None:
    """Refuse figures that plans of this kind do not have."""
    allowed = FIGURES_OF[kind]
    for name in run.measured():
        if name not in allowed:
            raise _fault(name, f"a {kind} plan has no such figure", str(getattr(run, name)), ", ".join(allowed))


def _check_near(name: str, measured: float, predicted: float | None) -> None:
    """Refuse a figure that can't be of this plan."""
    if predicted is not None and not predicted / FARTHEST <= measured <= predicted * FARTHEST:
        allowed = f"{predicted / FARTHEST:.4g} to {predicted * FARTHEST:.4g}; predicted: {predicted:.4g}"
        raise _fault(name, "this is no figure of this plan", f"{measured:g}", allowed, "check the unit, and which plan ran")


def _fault(field: str, problem: str, given: str, allowed: object = None, remedy: str | None = None) -> DocumentError:
    fault = FieldError(field, problem, given, None if allowed is None else str(allowed), remedy)
    return DocumentError("this run can't be used", (fault,))
