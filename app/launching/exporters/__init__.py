"""A plan exported: as what a launcher starts, as a script with its files, as the job of a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from meshwright.app.launching.launchers.table import SERVING, TRAINING
from meshwright.app.launching.parts.export import Export
from meshwright.app.launching.parts.launchable import require_launchable
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.model.documents import Fill
from meshwright.solver.answer.arrangement import arranged, arrangement_of
from meshwright.solver.answer.layouts import Kinds
from meshwright.solver.answer.pipeline_plan import placement_of, with_placement
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, ServingMode
from meshwright.solver.problem.launchers.servers import ServingForm
from meshwright.solver.problem.launchers.table import LAUNCHERS_OF, SERVERS, TRAINERS, asked_launcher
from meshwright.solver.problem.request import PlanRequest, ServingRequest, TrainingRequest

__all__ = ["LAUNCHERS", "Export", "export", "first_export", "own_launcher"]

LAUNCHERS = tuple(launcher.value for launcher in (*TRAINING, *SERVING))
"""The names that users give launchers."""


def export(plan: Plan, request: PlanRequest, launcher: str) -> Export:
    """The plan for a launcher; raises ExportError for an unknown launcher or a plan that it can't start."""
    if launcher not in LAUNCHERS:
        raise ExportError("unknown launcher", given=launcher, allowed=", ".join(LAUNCHERS))
    named = Launcher(launcher)
    wanted = next(kind for kind, launchers in LAUNCHERS_OF.items() if named in launchers.able)
    if plan.kind != wanted:
        raise ExportError(f"{launcher} launches {wanted} plans", given=f"a {plan.kind} plan")
    return _EXPORT_OF[wanted](plan, request, named)


def _export_serving(plan: Plan, request: ServingRequest, named: Launcher) -> Export:
    _require_form(plan, named)
    require_launchable(plan, request, named)
    return SERVING[named].export(plan, request)


def _export_training(plan: Plan, request: TrainingRequest, named: Launcher) -> Export:
    # What launches a plan needs to know of its nodes only those that hold ranks, in the order in which they do.
    request = arranged(request, arrangement_of(placement_of(plan)))
    plan = with_placement(plan, group_order=(), idle_devices={})
    _require_adapters(request, named)
    _require_documents(request, named)
    require_launchable(plan, request, named)
    return TRAINING[named].export(plan, request)


_EXPORT_OF: Mapping[str, Callable[[Plan, Any, Launcher], Export]] = MappingProxyType(
    {"training": _export_training, "serving": _export_serving}
)
"""What exports plans of each kind of workload."""


def _require_adapters(request: TrainingRequest, launcher: Launcher) -> None:
    """Raise ExportError for adapters and a launcher that trains none."""
    if request.workload.adapter is not None and not TRAINERS[launcher].adapters:
        able = ", ".join(other.value for other, rules in TRAINERS.items() if rules.adapters)
        raise ExportError(f"exports to {launcher.value} train all weights", given="workload.adapter", allowed=able)


def _require_documents(request: TrainingRequest, launcher: Launcher) -> None:
    """Raise ExportError for documents and a launcher that does not mask them, or does not fill sequences up."""
    lengths = request.workload.lengths
    if lengths is not None and lengths.fill is Fill.PADDED and not TRAINERS[launcher].fills_sequences:
        raise ExportError(
            f"exports to {launcher.value} do not fill sequences up",
            given="workload.lengths.fill: padded",
            allowed=", ".join(other.value for other, rules in TRAINERS.items() if rules.fills_sequences),
        )
    if request.workload.documents is not None and not TRAINERS[launcher].masks_documents:
        able = ", ".join(other.value for other, rules in TRAINERS.items() if rules.masks_documents)
        raise ExportError(f"exports to {launcher.value} mask no documents", given="workload.lengths", allowed=able)


def _require_form(plan: Plan, launcher: Launcher) -> None:
    """Raise ExportError where a launcher has no commands for a form; an infeasible answer has none."""
    if plan.layout is None:
        return
    form = type(plan.layout).__name__.lower()
    able = [other.value for other, server in SERVERS.items() if form in {each.value for each in server.forms}]
    if launcher.value in able:
        return
    if not able:
        raise ExportError(
            _NEVER.get(form, f"no launcher starts plans of the form {form}"),
            given=f"plan.{form}",
            remedy=f"plan again with search.modes [{ServingMode.AGGREGATED.value}]",
        )
    if isinstance(plan.layout, Kinds):
        given = f"{len(plan.layout.kinds)} kinds"
        raise ExportError(f"{launcher} exports plans of one kind of workers", given=given, allowed=", ".join(able))
    raise ExportError(f"{launcher} starts no plans of this form", given=form, allowed=", ".join(able))


_NEVER = {ServingForm.SWITCHED.value: "no launcher changes the layout of a server between prompts and answers"}
"""Words on forms that no launcher starts."""


def own_launcher(request: PlanRequest) -> Launcher:
    """Return the launcher that a request names, or that of its engine; the first of its kind where no launcher starts that."""
    return asked_launcher(request) or next(iter(LAUNCHERS_OF[request.workload.kind].able))


def first_export(plan: Plan, request: PlanRequest, preferred: Launcher) -> Export | None:
    """Return the export to a launcher that can start a plan, the preferred one where it can; None where none can."""
    for launcher in (preferred, *(Launcher(name) for name in LAUNCHERS if name != preferred.value)):
        with suppress(ExportError):
            return export(plan, request, launcher.value)
    return None
