"""Where requests find what is registered under the names that they give."""

from __future__ import annotations

from typing import Protocol

from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import ClusterError, ModelError
from meshwright.solver.problem.graph import ModelGraph


class Registry(Protocol):
    """The documents that are registered under the names that a request gives."""

    def model(self, name: str) -> ModelGraph:
        """A registered model; raises InvalidInputError when there is none."""
        ...

    def cluster(self, name: str) -> Cluster:
        """A registered cluster; raises InvalidInputError when there is none."""
        ...

    def newest_calibration(self, key: str) -> Calibration | None:
        """The newest calibration of a key, a device's of a registered cluster or that of runs; None when there is none."""
        ...

    def follows_runs(self, *, is_registered: bool) -> bool:
        """Return True if requests of such a cluster, registered or not, use what was learned from runs."""
        ...


class NoRegistry:
    """Where nothing is registered."""

    def model(self, name: str) -> ModelGraph:
        """Always refuses."""
        raise ModelError("registered models are known to the service only", given=name, remedy="give the model itself")

    def cluster(self, name: str) -> Cluster:
        """Always refuses."""
        raise ClusterError("registered clusters are known to the service only", given=name, remedy="give the cluster itself")

    def newest_calibration(self, key: str) -> Calibration | None:
        """None: there is no registered cluster."""
        return None

    def follows_runs(self, *, is_registered: bool) -> bool:
        """Return False: nothing is stored."""
        return False


NO_REGISTRY = NoRegistry()
