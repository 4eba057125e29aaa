"""The table of all launchers, of training and of serving plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.servers import ENGINES, SERVERS, Server
from meshwright.solver.problem.launchers.trainers import TRAINERS, Trainer
from meshwright.solver.problem.request import PlanRequest

__all__ = ["ENGINES", "LAUNCHERS", "LAUNCHERS_OF", "SERVERS", "TRAINERS", "asked_launcher", "launcher_of"]

LAUNCHERS: Mapping[Launcher, Trainer | Server] = MappingProxyType({**TRAINERS, **SERVERS})


def launcher_of(engine: ServingEngine) -> Launcher | None:
    """The launcher that starts an engine; None for an engine that has no exporter."""
    return next((launcher for launcher, server in SERVERS.items() if server.engine is engine), None)


@dataclass(frozen=True, slots=True)
class KindLaunchers:
    """The launchers of a kind of workload, and the one of a search that names this launcher and this engine."""

    able: Mapping[Launcher, Trainer | Server]
    named: Callable[[Launcher, ServingEngine], Launcher | None]


LAUNCHERS_OF: Mapping[str, KindLaunchers] = MappingProxyType(
    {
        "training": KindLaunchers(TRAINERS, lambda launcher, engine: launcher),
        "serving": KindLaunchers(SERVERS, lambda launcher, engine: launcher_of(engine)),
    }
)
"""Launchers by the kind of workload."""


def asked_launcher(request: PlanRequest) -> Launcher | None:
    """Return the launcher that a request names, or that of its engine; None for an engine that has no exporter."""
    return LAUNCHERS_OF[request.workload.kind].named(request.search.launcher, request.search.engine)
