"""SGLang with a pool of prefill and a pool of decode servers: one command each, and the router before them.

Rules are those of sglang/srt/disaggregation (rank mapping of CommonKVReceiver) and of its documentation of PD disaggregation.
"""

from __future__ import annotations

from meshwright.app.exporters.command import ShellVariable, command_text, flag
from meshwright.app.exporters.export import Export
from meshwright.app.exporters.served import require_engine
from meshwright.app.exporters.sglang.server import PORT, VERSION, lost_in_words, server_assumptions, server_command
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.answer.axes import Axes
from meshwright.solver.answer.layouts import Pools
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.workers import Workers
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import ServingRequest

PREFILL_FILE, DECODE_FILE, ROUTER_FILE = "prefill.sh", "decode.sh", "router.sh"
BOOTSTRAP_PORT = 8998
"""SGLang's own default of --disaggregation-bootstrap-port."""
ROUTER_PORT = 8000


def export_pools(plan: Plan, pools: Pools, request: ServingRequest) -> Export:
    """A script for a server of each pool; raises ExportError for layouts between which SGLang moves no cache."""
    require_engine(request, ServingEngine.SGLANG)
    prefill, decode = pools.prefill_workers, pools.decode_workers
    _require_connectable(prefill.axes, decode.axes)
    commands = {
        name: server_command(
            plan.model,
            workers,
            request,
            together=False,
            port=PORT + index,
            more=[
                (*flag("disaggregation-mode", mode), *flag("disaggregation-transfer-backend", "nixl")),
                *([flag("disaggregation-bootstrap-port", BOOTSTRAP_PORT)] if mode == "prefill" else []),
            ],
        )
        for index, (name, mode, workers) in enumerate(((PREFILL_FILE, "prefill", prefill), (DECODE_FILE, "decode", decode)))
    }
    commands[ROUTER_FILE] = _router_command()
    return Export(
        launcher=Launcher.SGLANG,
        version=VERSION,
        command=" & ".join(f"bash {name}" for name in commands) + " & wait",
        files={name: f"#!/bin/bash\n{command}\n" for name, command in commands.items()},
        inexpressible=tuple(
            dict.fromkeys(said for each in (prefill, decode) for said in lost_in_words(each.axes, request, both_phases=False))
        ),
        assumptions=(
            *dict.fromkeys(said for each in (prefill, decode) for said in server_assumptions(plan.model, each.axes, request)),
            *_pool_assumptions(prefill, decode),
        ),
    )


def _router_command() -> str:
    parts = [
        ("python", "-m", "sglang_router.launch_router"),
        flag("pd-disaggregation"),
        flag("prefill", ShellVariable("PREFILL_URL"), BOOTSTRAP_PORT),
        flag("decode", ShellVariable("DECODE_URL")),
        flag("policy", "random"),
        flag("port", ROUTER_PORT),
    ]
    return command_text(parts=parts)


def _require_connectable(prefill: Axes, decode: Axes) -> None:
    """Pipelines of decode servers are as long as the prefill servers' or have one stage; tensor-parallel degrees of a cache's
    two ends divide one another."""
    if decode.pp not in (1, prefill.pp):
        raise ExportError(
            "SGLang wants decode servers with as many pipeline stages as the prefill servers, or one",
            given=f"prefill pp {prefill.pp}, decode pp {decode.pp}",
            remedy="restrict search.pp",
        )
    if max(prefill.tp, decode.tp) % min(prefill.tp, decode.tp):
        raise ExportError(
            "SGLang moves caches between servers one of whose tp is a multiple of the other's",
            given=f"prefill tp {prefill.tp}, decode tp {decode.tp}",
            remedy="restrict search.tp",
        )


def _pool_assumptions(prefill: Workers, decode: Workers) -> tuple[str, ...]:
    sizes = [axes.tp * axes.cp * axes.attention_dp * axes.pp for axes in (prefill.axes, decode.axes)]
    return (
        f"{PREFILL_FILE} is one prefill server of {prefill.count}, on {sizes[0]} devices, {DECODE_FILE} one decode server "
        f"of {decode.count}, on {sizes[1]}: start each so many times, on devices (--base-gpu-id), ports "
        "and, for prefill, bootstrap ports of its own",
        f"{ROUTER_FILE} needs sglang-router; PREFILL_URL and DECODE_URL are the addresses of a server of each pool, as in "
        "http://10.0.0.1:30000: repeat --prefill and --decode for the others",
    )
