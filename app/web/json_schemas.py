"""The versioned JSON Schemas of every document that Meshwright reads or writes."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import TypeAdapter

from meshwright.app.regression.lock import LOCK_SCHEMA, Lock, Policy
from meshwright.app.regression.report import REPORT_SCHEMA, CheckReport
from meshwright.app.requests.document import RequestDocument
from meshwright.app.web.schemas import PlanDocument
from meshwright.costmodels.cluster.cluster import Cluster, NodeType
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import PLAN_SCHEMA
from meshwright.solver.problem.graph import MODEL_GRAPH_SCHEMA, ModelGraph
from meshwright.solver.problem.request import REQUEST_SCHEMA, ServingWorkload, Slo, TrainingWorkload
from meshwright.solver.problem.search import Search

DRAFT = "https://json-schema.org/draft/2020-12/schema"

_RECORDS: dict[str, tuple[str, Any]] = {
    "request": (REQUEST_SCHEMA, RequestDocument),
    "plan": (PLAN_SCHEMA, PlanDocument),
    "model-graph": (MODEL_GRAPH_SCHEMA, ModelGraph),
    "cluster": ("meshwright.cluster/1", Cluster),
    "node-type": ("meshwright.node-type/1", NodeType),
    "training-workload": ("meshwright.training-workload/1", TrainingWorkload),
    "serving-workload": ("meshwright.serving-workload/1", ServingWorkload),
    "slo": ("meshwright.slo/1", Slo),
    "search": ("meshwright.search/1", Search),
    "plans-lock": (LOCK_SCHEMA, Lock),
    "check": (REPORT_SCHEMA, CheckReport),
    "check-policy": ("meshwright.check-policy/1", Policy),
}


def schema_names() -> tuple[str, ...]:
    """Names of all schemas."""
    return tuple(_RECORDS)


def schema_id(name: str) -> str:
    """Versioned id of a schema, as documents give it in their ``schema`` field."""
    return _record(name)[0]


@cache
def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of that name; raises InvalidInputError with the names there are."""
    identifier, record = _record(name)
    schema = TypeAdapter(record).json_schema(by_alias=True)
    return {"$schema": DRAFT, "$id": f"urn:{identifier.replace('/', ':')}", **schema, "title": identifier}


def _record(name: str) -> tuple[str, Any]:
    if name not in _RECORDS:
        raise InvalidInputError("there is no such schema", given=name, allowed=", ".join(_RECORDS))
    return _RECORDS[name]
