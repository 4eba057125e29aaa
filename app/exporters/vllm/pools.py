"""vLLM with a pool of prefill and a pool of decode servers: one command each, keys and values through the NixlConnector.

Rules are those of vllm/distributed/kv_transfer (NixlConnector) and of its documentation of disaggregated prefilling.
"""

from __future__ import annotations

import json

from meshwright.app.exporters.command import flag
from meshwright.app.exporters.export import Export
from meshwright.app.exporters.served import checkpoint_assumption
from meshwright.app.exporters.vllm.server import PORT, VERSION, serve_command
from meshwright.costmodels.errors import ExportError
from meshwright.solver.answer.axes import Axes
from meshwright.solver.answer.layouts import Pools
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.workers import Workers
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import ServingRequest

PREFILL_FILE, DECODE_FILE = "prefill.sh", "decode.sh"
SIDE_CHANNEL_PORT = 5600
"""vLLM's own default of VLLM_NIXL_SIDE_CHANNEL_PORT."""

_CONNECTOR = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})


def export_pools(plan: Plan, pools: Pools, request: ServingRequest) -> Export:
    """A script for a server of each pool; raises ExportError for layouts between which vLLM moves no cache."""
    prefill, decode = pools.prefill_workers, pools.decode_workers
    _require_connectable(prefill.axes, decode.axes)
    connector = (flag("kv-transfer-config", _CONNECTOR),)
    commands = {
        name: serve_command(
            plan.model,
            workers,
            request,
            together=False,
            port=PORT + index,
            more=connector,
            environment=(("VLLM_NIXL_SIDE_CHANNEL_PORT", str(SIDE_CHANNEL_PORT + index)),),
        )
        for index, (name, workers) in enumerate(((PREFILL_FILE, prefill), (DECODE_FILE, decode)))
    }
    return Export(
        launcher=Launcher.VLLM,
        version=VERSION,
        command=f"bash {PREFILL_FILE} & bash {DECODE_FILE} & wait",
        files={name: f"#!/bin/bash\n{command}\n" for name, command in commands.items()},
        assumptions=_assumptions(plan.model, prefill, decode),
    )


def _require_connectable(prefill: Axes, decode: Axes) -> None:
    """The NixlConnector moves caches between tensor-parallel servers whose degrees divide, prefill's being the smaller."""
    for name, axes in (("prefill", prefill), ("decode", decode)):
        others = {"pp": axes.pp, "attention_dp": axes.attention_dp, "kvp": axes.kvp, "cp": axes.cp}
        used = [f"{axis} {degree}" for axis, degree in others.items() if degree > 1]
        if used:
            raise ExportError(
                "vLLM's NixlConnector moves caches between tensor-parallel servers only",
                given=f"{name} workers with {', '.join(used)}",
                remedy="plan with search.pp [1], search.attention_dp [1] and search.kvp [1]",
            )
    if decode.tp % prefill.tp:
        raise ExportError(
            "vLLM's NixlConnector wants decode servers whose tp is a multiple of the prefill servers'",
            given=f"prefill tp {prefill.tp}, decode tp {decode.tp}",
            remedy="restrict search.tp",
        )


def _assumptions(model: str, prefill: Workers, decode: Workers) -> tuple[str, ...]:
    return (
        checkpoint_assumption(model),
        f"{PREFILL_FILE} is one prefill server of {prefill.count}, on {prefill.axes.tp} devices, {DECODE_FILE} one decode "
        f"server of {decode.count}, on {decode.axes.tp}: start each so many times, on devices (CUDA_VISIBLE_DEVICES) and ports "
        "of its own; VLLM_NIXL_SIDE_CHANNEL_PORT differs between the servers of a host, VLLM_NIXL_SIDE_CHANNEL_HOST is the "
        "host's address",
        "a proxy in front sends each request to a prefill server for one token, then to a decode server, both drawn evenly "
        "(vLLM has an example, tests/v1/kv_connector/nixl_integration/toy_proxy_server.py)",
    )
