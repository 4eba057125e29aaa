"""The table of launchers and serving engines, made of what each one's module declares.

A launcher's module has its facts as ``LAUNCHER``, an engine's has its rules as ``ENGINE``; a module is named as the member of
`Launcher` or of `ServingEngine` is, so a new one has no line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from importlib import import_module
from types import MappingProxyType
from typing import Any

from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.server import Engine, Server
from meshwright.solver.problem.launchers.trainer import Trainer


def _declared_by(named: StrEnum, name: str) -> Any:
    """Return what the module of a launcher or an engine declares under a name."""
    return getattr(import_module(f"{__package__}.{named.name.lower()}"), name)


LAUNCHERS: Mapping[Launcher, Trainer | Server] = MappingProxyType(
    {launcher: _declared_by(launcher, "LAUNCHER") for launcher in Launcher}
)

TRAINERS: Mapping[Launcher, Trainer] = MappingProxyType(
    {launcher: facts for launcher, facts in LAUNCHERS.items() if isinstance(facts, Trainer)}
)
"""Launchers of training plans."""

SERVERS: Mapping[Launcher, Server] = MappingProxyType(
    {launcher: facts for launcher, facts in LAUNCHERS.items() if isinstance(facts, Server)}
)
"""Launchers of serving plans."""

ENGINES: Mapping[ServingEngine, Engine] = MappingProxyType({engine: _declared_by(engine, "ENGINE") for engine in ServingEngine})


def launcher_of(engine: ServingEngine) -> Launcher | None:
    """The launcher that starts an engine; None for an engine that has no exporter."""
    return next((launcher for launcher, server in SERVERS.items() if server.engine is engine), None)
