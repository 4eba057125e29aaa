"""Exporters: a plan as the command line of a launcher, one launcher a file.

Launchers change their flags with every release, so each exporter names the release that it writes for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from app.exporters.deepspeed import export_deepspeed
from app.exporters.export import Export
from app.exporters.launchable import require_launchable
from app.exporters.megatron_lm import export_megatron_lm
from app.exporters.sglang_pools import export_sglang_plan
from app.exporters.torchtitan import export_torchtitan
from app.exporters.vllm_pools import export_vllm_plan
from costmodels.errors import ExportError
from solver.choices import Launcher
from solver.plan import Plan
from solver.request import PlanRequest
from solver.training.orders import arranged, arrangement_of

__all__ = ["LAUNCHERS", "Export", "export"]

LAUNCHERS: Mapping[str, Callable[[Plan, PlanRequest], Export]] = MappingProxyType(
    {
        Launcher.MEGATRON_LM.value: export_megatron_lm,
        Launcher.DEEPSPEED.value: export_deepspeed,
        Launcher.TORCHTITAN.value: export_torchtitan,
        Launcher.VLLM.value: export_vllm_plan,
        Launcher.SGLANG.value: export_sglang_plan,
    }
)
"""The exporter of each launcher by the name users give it."""

_SERVES_KINDS = (Launcher.VLLM.value,)
_KINDS = {Launcher.VLLM: "serving", Launcher.SGLANG: "serving"}


def export(plan: Plan, request: PlanRequest, launcher: str) -> Export:
    """The plan for a launcher; raises ExportError for an unknown launcher or a plan that it can't start."""
    if launcher not in LAUNCHERS:
        raise ExportError("unknown launcher", given=launcher, allowed=", ".join(LAUNCHERS))
    wanted = _KINDS.get(Launcher(launcher), "training")
    if plan.kind != wanted:
        raise ExportError(f"{launcher} launches {wanted} plans", given=f"a {plan.kind} plan")
    if plan.kinds and launcher not in _SERVES_KINDS:
        given = f"{len(plan.kinds)} kinds"
        raise ExportError(f"{launcher} exports plans of one kind of workers", given=given, allowed=", ".join(_SERVES_KINDS))
    # What launches a plan needs to know of its nodes only those that hold ranks, in the order in which they do.
    request = arranged(request, arrangement_of(plan))
    plan = replace(plan, group_order=(), idle_devices={})
    require_launchable(plan, request, Launcher(launcher))
    return LAUNCHERS[launcher](plan, request)
