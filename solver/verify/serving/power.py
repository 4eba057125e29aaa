"""Power of a serving plan's devices, and the energy of its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.answer.stage import DeviceRange
from meshwright.solver.answer.workers import Workers
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.verify.numbers import agrees, at_most
from meshwright.solver.verify.rules.devices import devices_by_group
from meshwright.solver.verify.violation import Rule, Violation


def power_violations(
    predicted: Predicted, pools: Iterable[Workers], request: ServingRequest, *, devices: int
) -> Iterator[Violation]:
    """The ``devices`` of all pools take at least their idle power and at most their full power, and tokens take what devices
    do."""
    watts, joules = predicted.power_w, predicted.energy_per_token_j
    if watts is None and joules is None:
        return
    if watts is None or joules is None:
        yield Violation(Rule.ENERGY, "plan.predicted", f"power_w {watts}, energy_per_token_j {joules}: they go together")
        return
    least, most = _power_range(devices, request, [listed for workers in pools for listed in workers.device_ranges])
    if not (at_most(least, watts) and at_most(watts, most)):
        yield Violation(Rule.ENERGY, "plan.predicted.power_w", f"{watts} W, the devices take {least} to {most} W")
    if not agrees(joules * predicted.tokens_per_s, watts):
        given = f"{joules} J, {watts} W make {predicted.tokens_per_s} tokens/s"
        yield Violation(Rule.ENERGY, "plan.predicted.energy_per_token_j", given)


def _power_range(devices: int, request: ServingRequest, listed: list[DeviceRange]) -> tuple[float, float]:
    """Idle and full power of all devices. Where a plan lists the devices of one replica, all may be the thriftiest or not."""
    groups = devices_by_group(request.cluster, listed)
    least = sum(count * group.node.device.idle_power_w for group, count in groups)
    most = sum(count * group.node.device.power_w for group, count in groups)
    unlisted = devices - sum(count for _, count in groups)
    least += unlisted * min(group.node.device.idle_power_w for group, _ in groups)
    most += unlisted * max(group.node.device.power_w for group, _ in groups)
    return least, most
