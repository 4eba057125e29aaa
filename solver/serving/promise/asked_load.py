"""The load that is asked for and the targets that it is to meet, as a workload and its objective say."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.costmodels.queueing.analytic.capacity import demand_of
from meshwright.costmodels.queueing.simulation.replica import Targets
from meshwright.solver.problem.request import ServingWorkload, Slo
from meshwright.solver.serving.engines.traffic import Traffic


@dataclass
class AskedLoad:
    """Requests of a workload under a seed, at most so many in a simulation, and their targets."""

    workload: ServingWorkload
    slo: Slo
    seed: int
    requests: int

    def __post_init__(self) -> None:
        self.traffic = Traffic(self.workload, self.seed, self.requests)
        self.prompt, self.output = self.traffic.prompt, self.traffic.output
        self.targets = Targets(_target_s(self.slo.p95_ttft_ms), _target_s(self.slo.p95_tpot_ms))
        self.longest_request = self.traffic.longest_request
        self.demand = demand_of(self.traffic.whole)


def _target_s(milliseconds: float | None) -> float:
    return math.inf if milliseconds is None else milliseconds / 1e3
