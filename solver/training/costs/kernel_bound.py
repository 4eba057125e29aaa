"""The bound that no training plan can beat: its layers' kernels in the best shapes that any plan of the space gives them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from meshwright.solver.blocks.sharding_problem import least_compute_s
from meshwright.solver.control import Stop
from meshwright.solver.problem.choices import BatchShares, Space, StageDegrees
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.breakdown import compute_bound_s, least_step_flops, most_flops_per_s
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.space.candidates import CandidateFamily, families
from meshwright.solver.training.space.stage_sizes import sized_request, stage_sizes


def has_kernel_bound(request: TrainingRequest) -> bool:
    """True if a bound by kernels is worth its time, and holds: launchable searches have bounds of their own from the start, and
    where groups may have shares of the batch, micro-batches have sizes that are not looked at."""
    search = request.search
    return search.space is Space.FREE and search.batch_shares is BatchShares.EVEN and request.model.is_chain


def kernel_bound_s(request: TrainingRequest, *, stop: Stop) -> float:
    """Seconds that every plan's step takes at least: all devices always compute, nothing is sent, run again or waited for.

    The block that most layers have takes the time of the best of all shapes that a plan can give it, other layers their FLOPs
    at the peak. Where devices differ, their seconds have prices by which the whole cluster costs one a second: a step takes no
    less than its layers cost, each where it is cheapest. Where it is stopped, it is `compute_bound_s`.
    """
    at_peak_s = compute_bound_s(request)
    name, copies = Counter(request.model.layers).most_common(1)[0]
    least = _device_seconds(request, name, stop)
    groups = request.cluster.groups
    if not all(math.isfinite(sequence_s) for sequence_s in least.values()):
        return at_peak_s
    rate = sum(group.n_devices / least[group.node.device.name] for group in groups)
    elsewhere = least_step_flops(request, without=name)
    rest_s = min(
        elsewhere / (rate * least[device.name] * most_flops_per_s(request, device))
        for device in (group.node.device for group in groups)
    )
    return max(at_peak_s, request.workload.global_batch * copies / rate + rest_s)


def _requests(request: TrainingRequest) -> Iterator[TrainingRequest]:
    """The request, and what stages that differ see of it."""
    yield request
    if request.search.stage_degrees is not StageDegrees.SAME:
        for group in request.cluster.groups:
            for size in stage_sizes(request, group):
                yield sized_request(request, group, size, pp=2)


def _device_seconds(request: TrainingRequest, block: str, stop: Stop) -> dict[str, float]:
    """By device, the least device-seconds that a sequence computes in a block, of all shapes that its operators can have;
    infinite where stopped."""
    devices = {group.node.device.name: group.node.device for group in request.cluster.groups}
    least = dict.fromkeys(devices, math.inf)
    shapes, times = set[tuple[object, ...]](), dict[tuple[object, ...], float]()
    for asked in _requests(request):
        costs = TrainingCosts(asked)
        for family in families(asked):
            shape = _shape(family, request.search.space)
            if shape in shapes:
                continue
            shapes.add(shape)
            if stop():
                return dict.fromkeys(devices, math.inf)
            candidate = next(family.candidates())
            like = costs.settings(candidate, costs.stage_kinds(candidate)[0])[0]
            for name, device in devices.items():
                setting = replace(like, device=device)
                each_s = [least_compute_s(request.model, request.model.block(block), part, times) for part in setting.parts]
                known_s = [part_s for part_s in each_s if part_s is not None]
                if len(known_s) == len(each_s):
                    least[name] = min(least[name], setting.tp * setting.cp / setting.microbatch * sum(known_s))
    return least


def _shape(family: CandidateFamily, space: Space) -> tuple[object, ...]:
    """What the time of a block's operators depends on where nothing is sent."""
    mesh, slices = family.mesh, family.pipelinings[0].slices
    boundary = None if space is Space.FREE else family.boundary
    ranks = (mesh.tp, mesh.cp, mesh.ulysses, mesh.ep, mesh.expert_tp)
    return (*ranks, family.microbatch, slices, family.tp_overlap, boundary)
