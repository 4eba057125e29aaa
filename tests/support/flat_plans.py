"""A plan as the flat fields of its document, for tests that read or change one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.solver.answer.document import plan_of, record_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.plan_record import PlanRecord


def flat(plan: Plan) -> PlanRecord:
    """Return the plan's fields as its document has them."""
    return record_of(plan)


def with_fields(plan: Plan, **fields: Any) -> Plan:
    """Return the plan with other values of fields of its document."""
    return plan_of(replace(record_of(plan), **fields))
