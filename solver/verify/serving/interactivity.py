"""Throughput of a device against tokens per second of a user: points that none beats, and the plan's own figures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from meshwright.solver.answer.frontier import InteractivityPoint
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import FrontierScope, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import LognormalLength
from meshwright.solver.verify.numbers import agrees, at_most
from meshwright.solver.verify.serving.degrees import stage_ranks
from meshwright.solver.verify.serving.load import mean_lengths
from meshwright.solver.verify.violation import Rule, Violation


def interactivity_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """Rules of a serving plan's sweep over layouts and batch limits, where it has one."""
    drawn = plan.interactivity
    if drawn is None:
        return
    where = "plan.interactivity"
    if request.search.frontier is not FrontierScope.SWEPT:
        yield Violation(Rule.FRONTIER, where, "there is one, the request asks for none")
    assert plan.predicted is not None
    mean = plan.predicted.tokens_per_s / plan.devices
    if not agrees(drawn.plan_tokens_per_s_per_device, mean):
        given = f"{drawn.plan_tokens_per_s_per_device}, tokens/s over devices are {mean}"
        yield Violation(Rule.FRONTIER, f"{where}.plan_tokens_per_s_per_device", given)
    for index, (better, point) in enumerate(pairwise(drawn.points)):
        less = point.tokens_per_s_per_device < better.tokens_per_s_per_device
        if not (less and point.tokens_per_s_per_user > better.tokens_per_s_per_user):
            given = f"throughput must fall and tokens/s of a user rise from {better.summary!r} to {point.summary!r}"
            yield Violation(Rule.FRONTIER, f"{where}.points[{index + 1}]", given)
    for index, point in enumerate(drawn.points):
        for given in (*_shape_faults(point, request), *_rate_faults(point, request)):
            yield Violation(Rule.FRONTIER, f"{where}.points[{index}]", given)


def _shape_faults(point: InteractivityPoint, request: ServingRequest) -> Iterator[str]:
    """Yield the faults of a replica and its batch."""
    axes, search, prompts = point.axes, request.search, point.prefill
    taken = {point.group: point.workers * stage_ranks(axes) * axes.pp}
    if prompts is not None:
        of_prompts = prompts.workers * stage_ranks(prompts.axes) * prompts.axes.pp
        taken[prompts.group] = taken.get(prompts.group, 0) + of_prompts
        if ServingMode.DISAGGREGATED not in search.modes:
            yield "a pair of pools, the request allows none"
    elif point.workers != 1:
        yield f"{point.workers} replicas, a point is of one"
    if point.devices != sum(taken.values()):
        yield f"{point.devices} devices, the degrees make {sum(taken.values())}"
    for name, devices in taken.items():
        room = [group.n_devices for group in request.cluster.groups if group.name == name]
        if not room or devices > room[0]:
            yield f"{devices} devices of node group {name!r}, the cluster has {room[0] if room else 0}"
    groups = point.workers * axes.attention_dp
    if not at_most(point.batch, point.max_num_seqs * groups):
        yield f"a batch of {point.batch}, {groups} attention groups may run {point.max_num_seqs} sequences each"
    allowed = ((axes.tp, search.tp), (axes.pp, search.pp), (axes.ep, search.ep), (axes.kvp, search.kvp))
    for degree, degrees in (*allowed, (axes.attention_dp, search.attention_dp)):
        if degrees and degree not in degrees:
            yield f"a degree of {degree}, the search allows {degrees}"


def _rate_faults(point: InteractivityPoint, request: ServingRequest) -> Iterator[str]:
    """Little's law: of m output tokens all but the first are waited for, so that a batch of n sequences of u tokens/s each
    makes at most n u m / (m - 1). The mean of lognormal lengths is not known here: they are cut at a percentile."""
    if isinstance(request.workload.output_tokens, LognormalLength):
        return
    _, output = mean_lengths(request.workload)
    made, most = point.tokens_per_s_per_device * point.devices, point.batch * point.tokens_per_s_per_user * output
    if not at_most(made * (output - 1.0), most):
        yield f"{made} tokens/s of a batch of {point.batch} at {point.tokens_per_s_per_user} tokens/s each"
