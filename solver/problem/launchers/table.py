"""The table of launchers and serving engines, made of what each one's module declares.

Names are those of `solver.problem.choices.Launcher` and `costmodels.serving.engine_profile.ServingEngine`. The module of this
room with a launcher's name has its facts as ``LAUNCHER``, that with an engine's name has its rules as ``ENGINE``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType

from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.server import Engine, Server
from meshwright.solver.problem.launchers.trainer import Trainer


def _module_of(name: Launcher | ServingEngine) -> ModuleType:
    return import_module(f"{__package__}.{name.name.lower()}")


def _declared_launchers() -> Iterator[tuple[Launcher, Trainer | Server]]:
    for launcher in Launcher:
        declared: object = _module_of(launcher).LAUNCHER
        if not isinstance(declared, Trainer | Server):
            raise TypeError(f"LAUNCHER of the module of {launcher.value} is neither a Trainer nor a Server")
        yield launcher, declared


def _declared_engines() -> Iterator[tuple[ServingEngine, Engine]]:
    for engine in ServingEngine:
        declared: object = _module_of(engine).ENGINE
        if not isinstance(declared, Engine):
            raise TypeError(f"ENGINE of the module of {engine.value} is no Engine")
        yield engine, declared


LAUNCHERS: Mapping[Launcher, Trainer | Server] = MappingProxyType(dict(_declared_launchers()))

TRAINERS: Mapping[Launcher, Trainer] = MappingProxyType(
    {launcher: facts for launcher, facts in LAUNCHERS.items() if isinstance(facts, Trainer)}
)
"""Launchers of training plans."""

SERVERS: Mapping[Launcher, Server] = MappingProxyType(
    {launcher: facts for launcher, facts in LAUNCHERS.items() if isinstance(facts, Server)}
)
"""Launchers of serving plans."""

ENGINES: Mapping[ServingEngine, Engine] = MappingProxyType(dict(_declared_engines()))


def launcher_of(engine: ServingEngine) -> Launcher | None:
    """The launcher that starts an engine; None for an engine that has no exporter."""
    return next((launcher for launcher, server in SERVERS.items() if server.engine is engine), None)
