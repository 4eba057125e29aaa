"""The load that is asked for and the targets that it is to meet, as a workload and its objective say."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costmodels.queueing.analytic.capacity import demand_of
from meshwright.solver.problem.request import ServingWorkload
from meshwright.solver.serving.engines.traffic import Traffic
from meshwright.solver.serving.promise.promised import Promised


@dataclass
class AskedLoad:
    """Requests of a workload under a seed, at most so many in a simulation, and the targets of what is simulated."""

    workload: ServingWorkload
    promised: Promised
    seed: int
    requests: int

    def __post_init__(self) -> None:
        self.traffic = Traffic(self.workload, self.seed, self.requests)
        self.prompt, self.output = self.traffic.prompt, self.traffic.output
        self.targets = self.promised.simulated
        self.longest_request = self.traffic.longest_request
        self.demand = demand_of(self.traffic.whole)
