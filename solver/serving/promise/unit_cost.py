"""The cost of a device of an engine, for objectives that add up devices or their prices."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import Engine

UnitCost = Callable[[Engine], float]
"""A function that returns what one device of an engine costs."""


def unit_cost(objective: Objective) -> UnitCost:
    """Return the cost of a device for an objective: its price where money counts, else 1."""
    return price if objective is Objective.COST else one_device


def one_device(_: Engine) -> float:
    """Count a device as one."""
    return 1.0


def price(engine: Engine) -> float:
    """USD per hour of a device of an engine."""
    per_hour = engine.layout.group.node.device.price_per_hour
    assert per_hour is not None, "prices are asked for first"
    return per_hour


def require_prices(request: ServingRequest) -> None:
    """Raise WorkloadError where money counts and a device has no price."""
    if request.objective is not Objective.COST:
        return
    unpriced = [group.node.device.name for group in request.cluster.groups if not group.node.device.price_per_hour]
    if unpriced:
        raise WorkloadError(
            "objective cost needs a price for every device",
            given=unpriced,
            remedy="set price_per_hour of the device, or ask for objective devices",
        )
