"""Shared by the tests of launchable inside and others: wide_request."""

from __future__ import annotations

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search


def wide_request(**opened: object) -> TrainingRequest:
    """A request whose free space takes minutes: a plan of simple shape is found in a second."""
    cluster = Cluster((NodeGroup("nodes", node_type("dgx-h100"), 4),))
    search = Search(space=Space.FREE, **opened)  # type: ignore[arg-type]
    return TrainingRequest(model("llama-3.1-8b"), cluster, TrainingWorkload("training", 256, 8192), search=search)
