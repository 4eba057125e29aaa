"""The table of launchers and serving engines, made of what each one's module declares.

A launcher's module has its facts as ``LAUNCHER``, an engine's has its rules as ``ENGINE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers import deepspeed, megatron_lm, sglang, tensorrt_llm, torchtitan, vllm
from meshwright.solver.problem.launchers.server import Engine, Server
from meshwright.solver.problem.launchers.trainer import Trainer

LAUNCHERS: Mapping[Launcher, Trainer | Server] = MappingProxyType(
    {
        Launcher.MEGATRON_LM: megatron_lm.LAUNCHER,
        Launcher.DEEPSPEED: deepspeed.LAUNCHER,
        Launcher.TORCHTITAN: torchtitan.LAUNCHER,
        Launcher.VLLM: vllm.LAUNCHER,
        Launcher.SGLANG: sglang.LAUNCHER,
    }
)

TRAINERS: Mapping[Launcher, Trainer] = MappingProxyType(
    {launcher: facts for launcher, facts in LAUNCHERS.items() if isinstance(facts, Trainer)}
)
"""Launchers of training plans."""

SERVERS: Mapping[Launcher, Server] = MappingProxyType(
    {launcher: facts for launcher, facts in LAUNCHERS.items() if isinstance(facts, Server)}
)
"""Launchers of serving plans."""

ENGINES: Mapping[ServingEngine, Engine] = MappingProxyType(
    {
        ServingEngine.VLLM: vllm.ENGINE,
        ServingEngine.SGLANG: sglang.ENGINE,
        ServingEngine.TENSORRT_LLM: tensorrt_llm.ENGINE,
    }
)

assert tuple(LAUNCHERS) == tuple(Launcher), "every launcher has its facts"
assert tuple(ENGINES) == tuple(ServingEngine), "every engine has its rules"


def launcher_of(engine: ServingEngine) -> Launcher | None:
    """The launcher that starts an engine; None for an engine that has no exporter."""
    return next((launcher for launcher, server in SERVERS.items() if server.engine is engine), None)
