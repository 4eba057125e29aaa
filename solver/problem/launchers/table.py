"""The table of all launchers, of training and of serving plans."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.servers import ENGINES, SERVERS, Server
from meshwright.solver.problem.launchers.trainers import TRAINERS, Trainer

__all__ = ["ENGINES", "LAUNCHERS", "SERVERS", "TRAINERS", "launcher_of"]

LAUNCHERS: Mapping[Launcher, Trainer | Server] = MappingProxyType({**TRAINERS, **SERVERS})


def launcher_of(engine: ServingEngine) -> Launcher | None:
    """The launcher that starts an engine; None for an engine that has no exporter."""
    return next((launcher for launcher, server in SERVERS.items() if server.engine is engine), None)
