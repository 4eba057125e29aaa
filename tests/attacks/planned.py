"""Plans by the planner of everything that an exporter makes a form of its own for, to be renamed by an attacker."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from meshwright.app.base.solving import solve_here
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import PlanRequest, ServingWorkload
from tests.support.flat_plans import flat, with_fields

Case = tuple[Plan, PlanRequest]

SERVED: dict[str, Any] = {
    "schema": "meshwright.request/1",
    "model": {"catalog": "qwen3-8b"},
    "cluster": {"groups": [{"name": "pool", "node": "dgx-h100", "nodes": 1}]},
    "workload": {
        "kind": "serving",
        "arrivals": {"process": "poisson", "requests_per_s": 2},
        "prompt_tokens": {"fixed": 1000},
        "output_tokens": {"fixed": 100},
    },
    "slo": {"p95_ttft_ms": 2000, "p95_tpot_ms": 50},
    "objective": "devices",
    "search": {"launcher": "vllm", "tp": [1], "pp": [1]},
}
TRAINED: dict[str, Any] = {
    "schema": "meshwright.request/1",
    "model": {"catalog": "llama-3.1-8b"},
    "cluster": {
        "groups": [{"name": "first", "node": "dgx-h100", "nodes": 1}, {"name": "rest", "node": "dgx-h100", "nodes": 1}]
    },
    "workload": {"kind": "training", "global_batch": 64, "seq_len": 4096},
    "search": {"tp": [8], "pp": [2], "cp": [1], "microbatch": [1]},
}
DRAFT = {"draft_tokens": 2, "acceptance": 0.7, "draft": {"method": "eagle", "relative_cost": 0.1, "model": "draft"}}

EAGLE3 = {"method": "eagle3", "relative_cost": 0.02, "model": "draft"}


def _trained(launcher: str) -> dict[str, Any]:
    return {**TRAINED, "search": {**TRAINED["search"], "launcher": launcher}}


def _sharded(launcher: str, **search: Any) -> dict[str, Any]:
    return {**TRAINED, "search": {"microbatch": [1], "zero_stages": [3], "launcher": launcher, **search}}


def _served(engine: str = "vllm", *, work: dict[str, Any] | None = None, **search: Any) -> dict[str, Any]:
    return {
        **SERVED,
        "workload": {**SERVED["workload"], **(work or {})},
        "search": {**SERVED["search"], "launcher": engine, "engine": engine, **search},
    }


_KINDS = {
    **_served(worker_kinds=2),
    "cluster": {
        "groups": [{"name": "new", "node": "dgx-h200", "nodes": 1}, {"name": "old", "node": "dgx-a100-80gb", "nodes": 1}]
    },
    "objective": "throughput",
}

REQUESTS: dict[str, tuple[Launcher, dict[str, Any]]] = {
    "megatron": (Launcher.MEGATRON_LM, _trained("megatron-lm")),
    "megatron-bridge": (Launcher.MEGATRON_BRIDGE, _trained("megatron-bridge")),
    "deepspeed": (Launcher.DEEPSPEED, _trained("deepspeed")),
    "torchtitan": (Launcher.TORCHTITAN, _trained("torchtitan")),
    "pytorch": (Launcher.PYTORCH, _trained("pytorch")),
    "nemo": (Launcher.NEMO, _trained("nemo")),
    "nanotron": (Launcher.NANOTRON, _trained("nanotron")),
    "maxtext": (Launcher.MAXTEXT, _sharded("maxtext")),
    "accelerate": (Launcher.ACCELERATE, _sharded("accelerate")),
    "hf-trainer": (Launcher.HF_TRAINER, _sharded("hf-trainer")),
    "trl": (Launcher.TRL, _sharded("trl")),
    # ZeRO-1 goes through DeepSpeed, whose buffers leave no room for 8 B parameters.
    "axolotl": (Launcher.AXOLOTL, _sharded("axolotl", zero_stages=[1]) | {"model": {"catalog": "llama-3.2-3b"}}),
    "llama-factory": (Launcher.LLAMA_FACTORY, _sharded("llama-factory")),
    "vllm": (Launcher.VLLM, _served(work={"speculation": DRAFT})),
    "vllm-pools": (Launcher.VLLM, _served(modes=["disaggregated"])),
    "vllm-kinds": (Launcher.VLLM, _KINDS),
    "sglang": (Launcher.SGLANG, _served("sglang", work={"speculation": DRAFT})),
    "tensorrt-llm": (Launcher.TENSORRT_LLM, _served("tensorrt-llm", work={"speculation": DRAFT | {"draft": EAGLE3}})),
    "sglang-pools": (Launcher.SGLANG, _served("sglang", modes=["disaggregated"])),
}
"""For each form of an export, its launcher and a request whose plan has it."""


@cache
def planned(form: str) -> Case:
    """The plan of a form's request."""
    request = resolve_request(REQUESTS[form][1], files=NoFiles())
    plan = solve_here(request, ignore_progress)
    assert plan.feasible, plan.reason
    return plan, request


def renamed(case: Case, name: str) -> Case:
    """The case with this name for everything that a stranger names and a plan's page or launcher's command may hold."""
    plan, request = case
    groups = tuple(
        replace(
            group,
            name=f"{name}{index}",
            node=replace(group.node, name=name, device=replace(group.node.device, name=name)),
        )
        for index, group in enumerate(request.cluster.groups)
    )
    workload = request.workload
    if isinstance(workload, ServingWorkload) and workload.speculation is not None:
        speculation = workload.speculation
        workload = replace(workload, speculation=replace(speculation, draft=replace(speculation.draft, model=name)))
    own = {group.name: f"{name}{index}" for index, group in enumerate(request.cluster.groups)}
    other = replace(
        request,
        model=replace(request.model, name=name),
        cluster=replace(request.cluster, groups=groups),
        workload=workload,
    )
    return with_fields(plan, model=name, group_order=tuple(own[group] for group in flat(plan).group_order)), other
