"""Stages that differ in degrees and memory: as good as enumeration, predicted as planned, and checked stage by stage."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from costmodels.cluster import Cluster, GroupTopology, Link, NodeGroup, part_of_node
from costmodels.errors import PlanFileError, WorkloadError
from costmodels.memory import Optimizer
from solver.plan import AnsweredRequest, DeviceRange, Plan, Status
from solver.request import GroupOrder, Objective, PlanRequest, Recompute, Space, StageDegrees
from solver.switching import switch_bytes
from solver.training.costs import TrainingCosts
from solver.training.explain import explain
from solver.training.pipelining import PLAIN
from solver.training.planner import predict_training
from solver.training.stage_sizes import laid_out, sized_request, stage_sizes
from solver.verify import Rule, check
from tests.solver.training.every_plan import every_candidate, every_sharding
from tests.solver.training.instances import random_request
from tests.solver.training.planned import planned


def stagewise_requests(count: int) -> Iterator[PlanRequest]:
    """Requests of the free space for two or three stages on four devices of one kind, every micro-batch size allowed."""
    seed = 0
    while count:
        request = random_request(seed)
        seed += 1
        if request.search.space is Space.FREE and len(request.model.layers) in (3, 4):
            count -= 1
            node = part_of_node(request.cluster.groups[0].node, 2)
            # Sends as cheap as inside nodes, or small models are best on as few stages as can be.
            node = replace(node, inter=replace(node.intra, bytes_per_s=2 * node.intra.bytes_per_s))
            search = replace(
                request.search,
                stage_degrees=StageDegrees.ANY,
                microbatch=(),
                pp=(2, 3),
                schedules=(),
                recompute=(Recompute.NONE,) if seed % 2 else (Recompute.FULL,),
                offload_optimizer=(),
                offload_activations=(),
                tp_overlap=(),
            )
            cluster = replace(request.cluster, groups=(NodeGroup("nodes", node, 2),))
            yield replace(request, cluster=cluster, search=search)


def mixed_requests(count: int) -> Iterator[PlanRequest]:
    """The same on two kinds of nodes, one or two of each and of two devices, of which the second is slower in all but its
    fabric and has other memory, in this order or the other; every second request lets them stand in any order."""
    for seed, request in enumerate(stagewise_requests(count)):
        rng = np.random.default_rng(seed)
        (group,) = request.cluster.groups
        node, device = group.node, group.node.device
        slower = replace(
            device,
            name="slower",
            memory_bytes=int(device.memory_bytes * rng.uniform(0.7, 1.6)),
            peak_flops={dtype: rate * rng.uniform(0.3, 0.9) for dtype, rate in device.peak_flops.items()},
            memory_bytes_per_s=device.memory_bytes_per_s * rng.uniform(0.3, 0.9),
        )
        narrow = Link("narrow", node.inter.bytes_per_s * rng.uniform(0.05, 0.6), 2 * node.inter.latency_s)
        other = replace(node, name="other", device=slower, inter=narrow)
        counts = [(1, 1), (1, 1), (2, 1), (1, 2)][int(rng.integers(4))]
        groups = [NodeGroup(name, kind, n) for name, kind, n in zip("ab", (node, other), counts, strict=True)]
        groups = groups if rng.random() < 0.5 else groups[::-1]
        order = (GroupOrder.GIVEN, GroupOrder.ANY)[seed % 2]
        yield replace(request, cluster=Cluster(tuple(groups)), search=replace(request.search, group_order=order))


@dataclass(frozen=True)
class Run:
    """A stage of a run of layers: its time without sends, of which each border takes a part by the group behind it; its extra,
    and how many micro-batches fit at once."""

    time_s: float
    sends_s: tuple[float, ...]
    extra_s: float
    most_held: float


def every_run(request: PlanRequest, group: NodeGroup, size: int) -> dict[int, dict[tuple[int, int], list[Run]]]:
    """By the number of micro-batches and the run of layers, every stage of so many devices, straight from its table."""
    found: dict[int, dict[tuple[int, int], list[Run]]] = {}
    sized = sized_request(request, group, size, pp=2)
    costs, n_layers = TrainingCosts(sized), len(request.model.layers)
    for candidate in every_candidate(sized):
        if candidate.pipelining != PLAIN:
            continue
        (kind, *_) = costs.stage_kinds(candidate)
        (setting,) = costs.settings(candidate, kind)
        rates = [link_to(kind.borders[0], group, other) for other in request.cluster.groups]
        sends_s = tuple(costs.boundary_s(candidate, replace(kind, borders=(link, link)), setting) / 2 for link in rates)
        for sharding in every_sharding(costs, candidate):
            table = costs.table(candidate, kind, sharding)
            for row, first in itertools.product(range(len(candidate.recompute)), range(n_layers)):
                for last in range(first, n_layers):
                    layers = slice(first, last + 1)
                    static = float(table.static_bytes[layers].sum()) + float(table.transient_bytes[row, layers].max())
                    kept = float(table.activation_bytes[row, layers].sum())
                    room = table.capacity_bytes - static
                    held = math.inf if kept == 0 and room >= 0 else room // kept if kept else -1.0
                    extra_s = float(table.extra_s[layers].sum()) + (table.step_s if first else 0.0)
                    run = Run(float(table.time_s[row, layers].sum()), sends_s, extra_s, held)
                    by_run = found.setdefault(candidate.n_microbatches, {})
                    by_run.setdefault((first, last), []).append(run)
    return found


def link_to(own: GroupTopology, group: NodeGroup, other: NodeGroup) -> GroupTopology:
    """The slower of a stage's own link and a device's share of the other group's network."""
    theirs, ours = (each.node.inter.bytes_per_s / each.node.devices_per_node for each in (other, group))
    if theirs >= ours:
        return own
    return replace(own, inter_bytes_per_s=theirs, inter_latency_s=other.node.inter.latency_s)


def least_step_s(request: PlanRequest) -> float:
    """The least over every order of node groups that is asked for (`least_in_order_s`)."""
    any_order = request.search.group_order is GroupOrder.ANY
    orders = itertools.permutations(request.cluster.groups) if any_order else [request.cluster.groups]
    return min(least_in_order_s(replace(request, cluster=Cluster(tuple(groups)))) for groups in orders)


def least_in_order_s(request: PlanRequest) -> float:
    """The least over every number of micro-batches, cut in two or three stages, sizes that fill each group, and stages, those
    of a group behind those of the one before."""
    groups, n_layers, least_s = request.cluster.groups, len(request.model.layers), math.inf
    runs = {
        (index, size): every_run(request, group, size)
        for index, group in enumerate(groups)
        for size in stage_sizes(request, group)
    }
    for n_stages in (2, 3):
        for cuts in itertools.combinations(range(1, n_layers), n_stages - 1):
            spans = [(a, b - 1) for a, b in itertools.pairwise((0, *cuts, n_layers))]
            for chosen in itertools.product(runs, repeat=n_stages):
                held = [sum(size for index, size in chosen if index == place) for place in range(len(groups))]
                if list(chosen) != sorted(chosen, key=lambda each: each[0]) or held != [g.n_devices for g in groups]:
                    continue
                for m in set.intersection(*(set(runs[each]) for each in chosen)):
                    options = [
                        stages_of(runs[each][m][span], min(m, n_stages - stage), neighbours(chosen, stage))
                        for stage, (each, span) in enumerate(zip(chosen, spans, strict=True))
                    ]
                    least_s = min([least_s, *(step_s(figures, m) for figures in itertools.product(*options))])
    return least_s


def neighbours(chosen: tuple[tuple[int, int], ...], stage: int) -> tuple[int, int]:
    """Groups of the stages before and behind; at an end of the pipeline of the only neighbour, twice."""
    before, behind = max(stage - 1, 0), min(stage + 1, len(chosen) - 1)
    return chosen[before if before != stage else behind][0], chosen[behind if behind != stage else before][0]


def stages_of(runs: list[Run], held: int, groups: tuple[int, int]) -> list[tuple[float, float]]:
    """Times and extras of a run's stages between two groups that hold so many micro-batches."""
    return unbeaten({(r.time_s + sum(r.sends_s[g] for g in groups), r.extra_s) for r in runs if r.most_held >= held})


def step_s(figures: Sequence[tuple[float, float]], n_microbatches: int) -> float:
    """Time of a step of stages with these times and extras."""
    tail_s = 0.0
    for time_s, extra_s in figures:
        tail_s = max(tail_s, extra_s) + time_s
    return (n_microbatches - 1) * max(time_s for time_s, _ in figures) + tail_s


def unbeaten(figures: set[tuple[float, float]]) -> list[tuple[float, float]]:
    """Times and extras of which no other has less of both."""
    found: list[tuple[float, float]] = []
    for time_s, extra_s in sorted(figures):
        if not found or extra_s < found[-1][1]:
            found.append((time_s, extra_s))
    return found


def assert_is_the_best_of_all(request: PlanRequest) -> Plan:
    plan = planned(request)
    same = planned(replace(request, search=replace(request.search, stage_degrees=StageDegrees.SAME)))
    least_s = min(least_step_s(request), same.certificate.objective or math.inf)
    assert plan.feasible == (least_s < math.inf)
    if plan.feasible:
        assert plan.certificate.objective == pytest.approx(least_s, rel=1e-9)
        assert plan.certificate.status is Status.OPTIMAL
    if any(stage.shardings for stage in plan.stages):
        again = predict_training(request, plan)
        assert again.predicted == plan.predicted
        assert again.stages == plan.stages
    return plan


def test_stages_that_differ_are_as_good_as_the_best_of_all() -> None:
    requests = list(stagewise_requests(15))
    plans = [assert_is_the_best_of_all(requests[place]) for place in (6, 7, 8, 13, 14)]
    assert sum(any(stage.shardings for stage in plan.stages) for plan in plans) == 4


@cache
def differing() -> tuple[Plan, PlanRequest]:
    """A plan whose stages differ in degrees or place of state."""
    *_, request = stagewise_requests(3)
    plan = planned(request)
    assert len({stage.axes for stage in plan.stages}) > 1
    return plan, request


def rules(plan: Plan, request: PlanRequest) -> set[Rule]:
    return {violation.rule for violation in check(plan, request)}


def test_stages_may_move_different_shares_to_their_hosts() -> None:
    *_, request = stagewise_requests(7)
    group = replace(request.cluster.groups[0], node=part_of_node(request.cluster.groups[0].node, 1), nodes=4)
    moving = replace(request.search, offload_optimizer=(0.0, 0.5, 1.0), offload_activations=(0.0, 0.5))
    plan = planned(replace(request, cluster=Cluster((group,)), search=moving))
    assert plan.feasible
    assert plan.certificate.status is Status.OPTIMAL


def test_state_of_stages_on_hosts_is_checked_and_hosts_have_room_for_it() -> None:
    *_, request = stagewise_requests(3)
    group = replace(request.cluster.groups[0], node=part_of_node(request.cluster.groups[0].node, 1), nodes=3)
    search = replace(request.search, pp=(2,), offload_optimizer=(1.0,), offload_weights=(0.0, 1.0))
    request = replace(request, cluster=Cluster((group,)), search=search)
    plan = planned(request)
    assert any(stage.shardings for stage in plan.stages)
    first, *others = plan.stages
    lighter = replace(first, memory=replace(first.memory, host_bytes=first.memory.host_bytes / 2))
    assert Rule.HOST_MEMORY in rules(replace(plan, stages=(lighter, *others)), request)
    most = max(stage.memory.host_bytes for stage in plan.stages)
    small = replace(group, node=replace(group.node, host_memory_bytes=int(most / 2)))
    again = predict_training(replace(request, cluster=Cluster((small,))), plan)
    assert not again.feasible
    assert again.reason is not None and again.reason.constraint == "host_memory"


def test_broken_stages_are_found() -> None:
    plan, request = differing()
    first, *others = plan.stages
    memory = first.memory
    for stage, rule in (
        (replace(first, axes=replace(first.axes, dp=3)), Rule.AXES),
        (replace(first, devices=others[0].devices), Rule.DEVICES),
        (replace(first, devices=(DeviceRange(3, first.devices[0].count),)), Rule.DEVICES),
        (replace(first, sequence_parallel=None), Rule.SHARDING),
        (replace(first, shardings=first.shardings[1:]), Rule.SHARDING),
        (replace(first, memory=replace(memory, weights_bytes=memory.weights_bytes * 2)), Rule.WEIGHTS),
        (replace(first, in_flight=first.in_flight + 1), Rule.IN_FLIGHT),
        (replace(first, time_s=first.time_s * 1.5), Rule.STEP_TIME),
    ):
        assert rule in rules(replace(plan, stages=(stage, *others)), request), rule
    idle = (*plan.stages[:-1], replace(plan.stages[-1], time_s=0.0))
    assert Rule.STAGE_TIME in rules(replace(plan, stages=idle), request)
    same = replace(request, search=replace(request.search, stage_degrees=StageDegrees.SAME))
    assert Rule.SEARCH in rules(plan, same)
    assert Rule.STAGES in rules(replace(plan, schedule="gpipe"), request)
    assert Rule.DEVICES in rules(replace(plan, devices=plan.devices + 1), request)


def test_stages_on_mixed_nodes_are_as_good_as_the_best_of_all() -> None:
    requests = list(mixed_requests(9))
    plans = [assert_is_the_best_of_all(requests[place]) for place in (0, 7, 8)]
    assert sum(any(stage.shardings for stage in plan.stages) for plan in plans) == 3
    assert any(plan.group_order for plan in plans)


def test_broken_stages_on_mixed_nodes_are_found() -> None:
    (request,) = mixed_requests(1)
    plan = planned(request)
    first, *between, last = plan.stages
    assert first.shardings
    groups = request.cluster.groups
    for stages, rule in (
        ((first, *between, replace(last, devices=between[0].devices)), Rule.DEVICES),
        (
            (replace(first, devices=(DeviceRange(groups[0].n_devices - 1, first.devices[0].count),)), *between, last),
            Rule.DEVICES,
        ),
        (
            (first, *between, replace(last, memory=replace(last.memory, capacity_bytes=first.memory.capacity_bytes))),
            Rule.CAPACITY,
        ),
    ):
        assert rule in rules(replace(plan, stages=stages), request), rule
    back = replace(plan, stages=plan.stages[::-1], axes=last.axes)
    assert any("back in" in violation.message for violation in check(back, request))
    room = max(stage.memory.total_bytes for stage in (*between, last))
    device = replace(groups[1].node.device, memory_bytes=int(room) - 1)
    small = replace(groups[1], node=replace(groups[1].node, device=device))
    assert Rule.CAPACITY in rules(plan, replace(request, cluster=Cluster((groups[0], small))))
    assert Rule.SEARCH in rules(replace(plan, group_order=tuple(group.name for group in reversed(groups))), request)
    across = (replace(first, devices=(DeviceRange(groups[0].n_devices - 1, 2),)), *between, last)
    with pytest.raises(PlanFileError, match="one node group"):
        predict_training(request, replace(plan, stages=across))
    more = (replace(first, devices=last.devices), *between, last)
    with pytest.raises(PlanFileError, match="more devices than the cluster has in"):
        predict_training(request, replace(plan, stages=more))


def test_parts_of_any_size_fill_nodes_of_six() -> None:
    (request,) = stagewise_requests(1)
    group = replace(request.cluster.groups[0], node=part_of_node(request.cluster.groups[0].node, 6), nodes=3)
    uneven = replace(request, cluster=Cluster((group,)))
    assert stage_sizes(uneven, group) == (1, 2, 3, 6, 12)
    ranges = laid_out(uneven.cluster, [(group, size) for size in (2, 3, 2, 6, 1, 2, 2)])
    assert [(each.first, each.count) for each in ranges] == [(9, 2), (6, 3), (12, 2), (0, 6), (11, 1), (14, 2), (16, 2)]


def test_plans_of_stages_that_differ_are_moved_to_and_not_explained() -> None:
    plan, request = differing()
    answered = AnsweredRequest(plan, request)
    assert switch_bytes(answered, answered).moved_bytes == 0.0
    with pytest.raises(PlanFileError, match="one for each stage"):
        explain(request, plan, request.model.blocks[0].operators[0].name)
    wrong = (replace(plan.stages[0], axes=replace(plan.stages[0].axes, pp=7)), *plan.stages[1:])
    with pytest.raises(PlanFileError, match="pp"):
        predict_training(request, replace(plan, stages=wrong))


def test_stage_degrees_that_can_not_be_are_refused() -> None:
    (request,) = stagewise_requests(1)
    with pytest.raises(WorkloadError, match="no launcher"):
        planned(replace(request, search=replace(request.search, space=Space.LAUNCHABLE)))
    with pytest.raises(WorkloadError, match="whole cluster"):
        planned(replace(request, objective=Objective.DEVICES))
    with pytest.raises(WorkloadError, match="one optimizer"):
        planned(replace(request, search=replace(request.search, optimizers=tuple(Optimizer)[:2])))


def test_stages_of_any_sizes_fill_whole_nodes() -> None:
    (request,) = stagewise_requests(1)
    group = replace(request.cluster.groups[0], node=part_of_node(request.cluster.groups[0].node, 8), nodes=3)
    large = replace(request, cluster=Cluster((group,)))
    assert stage_sizes(large, group) == (1, 2, 4, 8, 16)
    moving = replace(large, search=replace(large.search, offload_optimizer=(0.0, 0.5)))
    assert stage_sizes(moving, group) == (8, 16)
    ranges = laid_out(large.cluster, [(group, size) for size in (1, 8, 2, 1, 8, 4)])
    assert [(each.first, each.count) for each in ranges] == [(22, 1), (0, 8), (20, 2), (23, 1), (8, 8), (16, 4)]
