"""From a plan to the flat fields of its document, and back.

Inside, a plan has a layout of one form (`solver.answer.layouts`). Its document is flat (`solver.answer.plan_record`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer import layouts
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.plan_record import (
    PlanRecord,
    ReplicaPool,
    ReplicaShares,
)
from meshwright.solver.answer.record_fields import named, record_as
from meshwright.solver.answer.serving_document import flat_serving, serving_layout


def record_of(plan: Plan) -> PlanRecord:
    """Return the plan as the fields of its document."""
    own = {each.name: getattr(plan, each.name) for each in fields(Plan) if each.name != "layout"}
    return PlanRecord(**own, **({} if plan.layout is None else _flat(plan.layout)))


def plan_of(record: PlanRecord) -> Plan:
    """Return the plan of a document; raises PlanFileError where its fields are of several forms, or not enough for one."""
    own = {each.name: getattr(record, each.name) for each in fields(Plan) if each.name != "layout"}
    plan = Plan(**own, layout=_training_layout(record) if record.kind == "training" else serving_layout(record))
    back = record_of(plan)
    lost = [each.name for each in fields(record) if getattr(record, each.name) != getattr(back, each.name, None)]
    if lost:
        form = "no layout" if plan.layout is None else type(plan.layout).__name__.lower()
        raise PlanFileError(
            "a plan has the fields of one form, and all of them",
            given=f"{', '.join(lost)} in a {record.kind} plan of the form: {form}",
            allowed="the fields of one form of layout (docs/plan-format.md)",
        )
    return plan


def _flat(layout: layouts.Layout) -> dict[str, Any]:
    """The fields of a document that a layout fills."""
    match layout:
        case layouts.Uniform() | layouts.Stagewise():
            return named(layout.pipelines) | named(layout.placement)
        case layouts.ByGroup():
            first, *others = layout.groups
            pools = tuple(record_as(ReplicaPool, replicas.pipelines, **named(replicas, but="pipelines")) for replicas in others)
            shares = ReplicaShares(first.sequences, first.step_time_s, layout.exchange_s, pools)
            return named(first.pipelines) | named(layout.placement) | {"shares": shares}
        case _:
            return flat_serving(layout)


def _training_layout(record: PlanRecord) -> layouts.TrainingLayout | None:
    if record.axes is None or record.microbatch is None or record.schedule is None or not record.stages:
        return None
    pipelines = record_as(layouts.Pipelines, record)
    placement = record_as(layouts.Placement, record)
    if record.shares is not None:
        shares = record.shares
        others = tuple(
            record_as(layouts.GroupReplicas, pool, pipelines=record_as(layouts.Pipelines, pool)) for pool in shares.pools
        )
        # The flat form does not name the first group: it is the cluster's.
        first = layouts.GroupReplicas("", shares.sequences, shares.step_time_s, pipelines)
        return layouts.ByGroup((first, *others), shares.exchange_s, placement)
    if any(stage.shardings for stage in record.stages):
        return layouts.Stagewise(pipelines, placement)
    return layouts.Uniform(pipelines, placement)
