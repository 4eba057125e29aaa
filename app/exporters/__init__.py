"""Exporters: a plan as the command line of a launcher, one launcher a file.

Launchers change their flags with every release, so each exporter names the release that it writes for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from meshwright.app.exporters.deepspeed import export_deepspeed
from meshwright.app.exporters.export import Export
from meshwright.app.exporters.launchable import require_launchable
from meshwright.app.exporters.megatron_lm import export_megatron_lm
from meshwright.app.exporters.sglang_pools import export_sglang_plan
from meshwright.app.exporters.torchtitan import export_torchtitan
from meshwright.app.exporters.vllm_pools import export_vllm_plan
from meshwright.costmodels.errors import ExportError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import PlanRequest, ServingRequest, TrainingRequest
from meshwright.solver.training.forms.uniform.device_orders import arranged, arrangement_of

__all__ = ["LAUNCHERS", "Export", "export"]

_TRAINING: Mapping[str, Callable[[Plan, TrainingRequest], Export]] = MappingProxyType(
    {
        Launcher.MEGATRON_LM.value: export_megatron_lm,
        Launcher.DEEPSPEED.value: export_deepspeed,
        Launcher.TORCHTITAN.value: export_torchtitan,
    }
)
_SERVING: Mapping[str, Callable[[Plan, ServingRequest], Export]] = MappingProxyType(
    {
        Launcher.VLLM.value: export_vllm_plan,
        Launcher.SGLANG.value: export_sglang_plan,
    }
)
LAUNCHERS = (*_TRAINING, *_SERVING)
"""The names that users give launchers."""

_SERVES_KINDS = (Launcher.VLLM.value,)


def export(plan: Plan, request: PlanRequest, launcher: str) -> Export:
    """The plan for a launcher; raises ExportError for an unknown launcher or a plan that it can't start."""
    if launcher not in LAUNCHERS:
        raise ExportError("unknown launcher", given=launcher, allowed=", ".join(LAUNCHERS))
    wanted = "training" if launcher in _TRAINING else "serving"
    if plan.kind != wanted:
        raise ExportError(f"{launcher} launches {wanted} plans", given=f"a {plan.kind} plan")
    if plan.kinds and launcher not in _SERVES_KINDS:
        given = f"{len(plan.kinds)} kinds"
        raise ExportError(f"{launcher} exports plans of one kind of workers", given=given, allowed=", ".join(_SERVES_KINDS))
    if isinstance(request, ServingRequest):
        require_launchable(plan, request, Launcher(launcher))
        return _SERVING[launcher](plan, request)
    # What launches a plan needs to know of its nodes only those that hold ranks, in the order in which they do.
    request = arranged(request, arrangement_of(plan))
    plan = replace(plan, group_order=(), idle_devices={})
    require_launchable(plan, request, Launcher(launcher))
    return _TRAINING[launcher](plan, request)
