"""The table of launchers and serving engines: facts of a launcher are its module's ``LAUNCHER``, rules of an engine its
``ENGINE``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers import (
    accelerate,
    axolotl,
    deepspeed,
    hf_trainer,
    llama_factory,
    megatron_lm,
    pytorch,
    sglang,
    tensorrt_llm,
    torchtitan,
    trl,
    vllm,
)
from meshwright.solver.problem.launchers.server import Engine, Server
from meshwright.solver.problem.launchers.trainer import Trainer

LAUNCHERS: Mapping[Launcher, Trainer | Server] = MappingProxyType(
    {
        Launcher.MEGATRON_LM: megatron_lm.LAUNCHER,
        Launcher.DEEPSPEED: deepspeed.LAUNCHER,
        Launcher.TORCHTITAN: torchtitan.LAUNCHER,
        Launcher.PYTORCH: pytorch.LAUNCHER,
        Launcher.ACCELERATE: accelerate.LAUNCHER,
        Launcher.HF_TRAINER: hf_trainer.LAUNCHER,
        Launcher.TRL: trl.LAUNCHER,
        Launcher.AXOLOTL: axolotl.LAUNCHER,
        Launcher.LLAMA_FACTORY: llama_factory.LAUNCHER,
        Launcher.VLLM: vllm.LAUNCHER,
        Launcher.SGLANG: sglang.LAUNCHER,
        Launcher.TENSORRT_LLM: tensorrt_llm.LAUNCHER,
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


def launcher_of(engine: ServingEngine) -> Launcher | None:
    """The launcher that starts an engine; None for an engine that has no exporter."""
    return next((launcher for launcher, server in SERVERS.items() if server.engine is engine), None)
