"""Power of a serving plan's devices, and the energy of its tokens."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import DeviceRange
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.verify.numbers import agrees, at_most
from meshwright.solver.verify.training.layout import devices_by_group
from meshwright.solver.verify.violation import Rule, Violation


def power_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """Devices in use take at least their idle power and at most their full power, and tokens take what devices do."""
    predicted = plan.predicted
    assert predicted is not None
    watts, joules = predicted.power_w, predicted.energy_per_token_j
    if watts is None and joules is None:
        return
    if watts is None or joules is None:
        yield Violation(Rule.ENERGY, "plan.predicted", f"power_w {watts}, energy_per_token_j {joules}: they go together")
        return
    pools = [plan.stages] if plan.prefill is None else [plan.stages, plan.prefill.stages]
    listed = [d for stages in pools for stage in stages for d in stage.devices]
    least, most = _power_range(plan, request, listed)
    if not (at_most(least, watts) and at_most(watts, most)):
        yield Violation(Rule.ENERGY, "plan.predicted.power_w", f"{watts} W, the devices take {least} to {most} W")
    if not agrees(joules * predicted.tokens_per_s, watts):
        given = f"{joules} J, {watts} W make {predicted.tokens_per_s} tokens/s"
        yield Violation(Rule.ENERGY, "plan.predicted.energy_per_token_j", given)


def _power_range(plan: Plan, request: ServingRequest, listed: list[DeviceRange]) -> tuple[float, float]:
    """Idle and full power of all devices. Where a plan lists the devices of one replica, all may be the thriftiest or not."""
    groups = devices_by_group(request.cluster, listed)
    least = sum(count * group.node.device.idle_power_w for group, count in groups)
    most = sum(count * group.node.device.power_w for group, count in groups)
    unlisted = plan.devices - sum(count for _, count in groups)
    least += unlisted * min(group.node.device.idle_power_w for group, _ in groups)
    most += unlisted * max(group.node.device.power_w for group, _ in groups)
    return least, most
