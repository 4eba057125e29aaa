"""From a plan to the flat fields of its document, and back.

Inside, a plan has a layout of one form (`solver.answer.layouts`). Its document is flat (`solver.answer.plan_record`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer import layouts
from meshwright.solver.answer.axes import Axes
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.plan_record import (
    PlanRecord,
    PrefillPool,
    ReplicaPool,
    ReplicaShares,
    ServingLayout,
    SwitchedPrompts,
    WorkerKind,
)
from meshwright.solver.answer.stage import Stage

Record = TypeVar("Record")


def record_of(plan: Plan) -> PlanRecord:
    """Return the plan as the fields of its document."""
    own = {each.name: getattr(plan, each.name) for each in fields(Plan) if each.name != "layout"}
    return PlanRecord(**own, **({} if plan.layout is None else _flat(plan.layout)))


def plan_of(record: PlanRecord) -> Plan:
    """Return the plan of a document; raises PlanFileError where its fields are of several forms, or not enough for one."""
    own = {each.name: getattr(record, each.name) for each in fields(Plan) if each.name != "layout"}
    plan = Plan(**own, layout=_training_layout(record) if record.kind == "training" else _serving_layout(record))
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
            return _named(layout.pipelines) | _named(layout.placement)
        case layouts.ByGroup():
            first, *others = layout.groups
            pools = tuple(_record(ReplicaPool, replicas.pipelines, **_named(replicas, but="pipelines")) for replicas in others)
            shares = ReplicaShares(first.sequences, first.step_time_s, layout.exchange_s, pools)
            return _named(first.pipelines) | _named(layout.placement) | {"shares": shares}
        case layouts.Replicas():
            return {"axes": layout.axes, "stages": layout.stages, "serving": _record(ServingLayout, layout.load)}
        case layouts.Pools():
            return _flat(layout.decode) | {"prefill": _record(PrefillPool, layout.prefill)}
        case layouts.Switched():
            return _flat(layout.answers) | {"switched": _record(SwitchedPrompts, layout.prompts)}
        case layouts.Kinds():
            return {"kinds": tuple(WorkerKind(**_named(kind, but="replicas"), **_flat(kind.replicas)) for kind in layout.kinds)}


def _training_layout(record: PlanRecord) -> layouts.TrainingLayout | None:
    if record.axes is None or record.microbatch is None or record.schedule is None or not record.stages:
        return None
    pipelines = _record(layouts.Pipelines, record)
    placement = _record(layouts.Placement, record)
    if record.shares is not None:
        shares = record.shares
        others = tuple(
            _record(layouts.GroupReplicas, pool, pipelines=_record(layouts.Pipelines, pool)) for pool in shares.pools
        )
        # The flat form does not name the first group: it is the cluster's.
        first = layouts.GroupReplicas("", shares.sequences, shares.step_time_s, pipelines)
        return layouts.ByGroup((first, *others), shares.exchange_s, placement)
    if any(stage.shardings for stage in record.stages):
        return layouts.Stagewise(pipelines, placement)
    return layouts.Uniform(pipelines, placement)


def _serving_layout(record: PlanRecord) -> layouts.ServingLayout | None:
    if record.kinds:
        return layouts.Kinds(
            tuple(
                _record(layouts.WorkerKind, kind, replicas=_replicas(kind.axes, kind.stages, kind.serving))
                for kind in record.kinds
            )
        )
    if record.axes is None or record.serving is None:
        return None
    replicas = _replicas(record.axes, record.stages, record.serving)
    if record.prefill is not None:
        return layouts.Pools(prefill=_record(layouts.PrefillWorkers, record.prefill), decode=replicas)
    if record.switched is not None:
        return layouts.Switched(prompts=_record(layouts.PromptPhase, record.switched), answers=replicas)
    return replicas


def _replicas(axes: Axes, stages: tuple[Stage, ...], serving: ServingLayout) -> layouts.Replicas:
    return layouts.Replicas(axes, stages, _record(layouts.EngineLoad, serving))


def _named(record: Any, *, but: str = "") -> dict[str, Any]:
    """The fields of a record by their names."""
    return {each.name: getattr(record, each.name) for each in fields(record) if each.name != but}


def _record(form: type[Record], given: Any, **others: Any) -> Record:
    """The record of a type from one that has fields of the same names, and from others."""
    wanted = {each.name for each in fields(form)}  # type: ignore[arg-type]
    return form(**{name: value for name, value in _named(given).items() if name in wanted} | others)
