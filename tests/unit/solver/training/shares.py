"""Shared by the tests of shares and others: unequal_requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.solver.problem.choices import BatchShares, Space
from meshwright.solver.problem.request import TrainingRequest
from tests.unit.solver.training.instances import random_request


def unequal_requests(count: int) -> Iterator[TrainingRequest]:
    """Requests of the free space on two kinds of nodes, which may have replicas each."""
    seed = 0
    while count:
        request = random_request(seed)
        seed += 1
        if len(request.cluster.groups) == 2 and request.search.space is Space.FREE and request.cluster.n_devices <= 4:
            count -= 1
            search = replace(request.search, batch_shares=BatchShares.BY_GROUP, offload_optimizer=(), offload_activations=())
            yield replace(request, search=search)
