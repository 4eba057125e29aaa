"""Shared by the tests of objectives and others: PRICE_PER_HOUR, request_with, with_slo, parts_of, Figures ..."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.solver.problem.choices import Objective, Space
from meshwright.solver.problem.request import Slo, TrainingRequest
from meshwright.solver.training.costs.evaluate import step_energy_j
from tests.unit.solver.training.every_plan import Priced, every_fitting_plan
from tests.unit.solver.training.instances import random_request
from tests.unit.solver.training.planned import planned

PRICE_PER_HOUR = 3.6


def request_with(seed: int, objective: Objective) -> TrainingRequest:
    """A small request of one node group in the launchable space, devices priced, two of three with room for parts."""
    request = random_request(seed)
    while (
        len(request.cluster.groups) > 1
        or request.cluster.n_devices not in (2, 4)
        or request.search.space is Space.FREE
        or len(request.model.layers) > 4
    ):
        seed += 1000
        request = random_request(seed)
    (group,) = request.cluster.groups
    memory_bytes = group.node.device.memory_bytes + (seed % 3) * 2**28
    device = replace(group.node.device, price_per_hour=PRICE_PER_HOUR, memory_bytes=memory_bytes)
    cluster = replace(request.cluster, groups=(replace(group, node=replace(group.node, device=device)),))
    return replace(request, cluster=cluster, objective=objective)


def with_slo(request: TrainingRequest, seed: int) -> TrainingRequest:
    """With a limit on the step that a part of the cluster may meet or miss; none for every third seed."""
    fastest = planned(request)
    factor = (0.9, 1.7, None)[seed % 3]
    if factor is None or fastest.predicted is None or fastest.predicted.step_time_s is None:
        return request
    return replace(request, slo=Slo(max_step_time_s=factor * fastest.predicted.step_time_s, confidence=0.5))


def parts_of(cluster: Cluster) -> Iterator[Cluster]:
    """1, 2, 4 ... devices of a node with their share of its cards; 1, 2, 3 ... nodes."""
    (group,) = cluster.groups
    node = group.node
    for n in range(1, node.devices_per_node):
        if node.devices_per_node % n == 0:
            cards = replace(node.inter, bytes_per_s=node.inter.bytes_per_s * n / node.devices_per_node)
            part = replace(group, node=replace(node, devices_per_node=n, inter=cards), nodes=1)
            yield replace(cluster, groups=(part,))
    for nodes in range(1, group.nodes + 1):
        yield replace(cluster, groups=(replace(group, nodes=nodes),))


@dataclass(frozen=True)
class Figures:
    """The worth of a plan on a part of the cluster by each objective."""

    devices: int
    step_s: float
    usd: float
    energy_j: float


def every_plan(request: TrainingRequest) -> Iterator[Figures]:
    """Figures of every plan of every part that fits and meets the SLO."""
    for part in parts_of(request.cluster):
        sized = replace(request, cluster=part)
        for priced in every_fitting_plan(sized):
            if priced.cost.step_time_s <= (request.slo.max_step_time_s or math.inf):
                usd = part.n_devices * PRICE_PER_HOUR / 3600.0 * priced.cost.step_time_s
                yield Figures(part.n_devices, priced.cost.step_time_s, usd, _energy_j(sized, priced))


def _energy_j(request: TrainingRequest, priced: Priced) -> float:
    return step_energy_j(request.cluster, priced.decision, priced.cost, priced.tables)


def least_of_each(whole: TrainingRequest) -> dict[Objective, float | None]:
    """The least of each objective among all plans of all parts; None where none meets the SLO."""
    plans = list(every_plan(whole))
    a_node = whole.cluster.groups[0].node.devices_per_node
    return {
        Objective.STEP_TIME: min((plan.step_s for plan in plans if plan.devices % a_node == 0), default=None),
        Objective.DEVICES: min((float(plan.devices) for plan in plans), default=None),
        Objective.COST: min((plan.usd for plan in plans), default=None),
        Objective.ENERGY: min((plan.energy_j for plan in plans), default=None),
    }
