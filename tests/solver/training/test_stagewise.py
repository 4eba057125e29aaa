"""Stages that differ in degrees and memory: as good as enumeration, predicted as planned, and checked stage by stage."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import pytest

from costmodels.cluster import Cluster, NodeGroup, part_of_node
from costmodels.errors import PlanFileError, WorkloadError
from solver.plan import AnsweredRequest, DeviceRange, Plan, Status
from solver.request import Objective, PlanRequest, Recompute, Space, StageDegrees
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


@dataclass(frozen=True)
class Run:
    """A stage of a run of layers: its time and extra, and how many micro-batches fit at once."""

    time_s: float
    extra_s: float
    most_held: float


def every_run(request: PlanRequest, size: int) -> dict[int, dict[tuple[int, int], list[Run]]]:
    """By the number of micro-batches and the run of layers, every stage of so many devices, straight from its table."""
    found: dict[int, dict[tuple[int, int], list[Run]]] = {}
    sized = sized_request(request, size, pp=2)
    costs, n_layers = TrainingCosts(sized), len(request.model.layers)
    for candidate in every_candidate(sized):
        if candidate.pipelining != PLAIN:
            continue
        (kind, *_) = costs.stage_kinds(candidate)
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
                    run = Run(float(table.time_s[row, layers].sum()) + table.boundary_s, extra_s, held)
                    by_run = found.setdefault(candidate.n_microbatches, {})
                    by_run.setdefault((first, last), []).append(run)
    return found


def least_step_s(request: PlanRequest) -> float:
    """The least over every number of micro-batches, cut in two or three stages, sizes that fill the cluster, and stages."""
    n_devices, n_layers, least_s = request.cluster.n_devices, len(request.model.layers), math.inf
    runs = {size: every_run(request, size) for size in stage_sizes(request)}
    for n_stages in (2, 3):
        for cuts in itertools.combinations(range(1, n_layers), n_stages - 1):
            spans = [(a, b - 1) for a, b in itertools.pairwise((0, *cuts, n_layers))]
            for sizes in itertools.product(runs, repeat=n_stages):
                if sum(sizes) != n_devices:
                    continue
                for m in set.intersection(*(set(runs[size]) for size in sizes)):
                    options = []
                    for stage, (size, span) in enumerate(zip(sizes, spans, strict=True)):
                        held = min(m, n_stages - stage)
                        options.append(unbeaten({(r.time_s, r.extra_s) for r in runs[size][m][span] if r.most_held >= held}))
                    for chosen in itertools.product(*options):
                        tail_s = 0.0
                        for time_s, extra_s in chosen:
                            tail_s = max(tail_s, extra_s) + time_s
                        least_s = min(least_s, (m - 1) * max(time_s for time_s, _ in chosen) + tail_s)
    return least_s


def unbeaten(figures: set[tuple[float, float]]) -> list[tuple[float, float]]:
    """Times and extras of which no other has less of both."""
    found: list[tuple[float, float]] = []
    for time_s, extra_s in sorted(figures):
        if not found or extra_s < found[-1][1]:
            found.append((time_s, extra_s))
    return found


def test_stages_that_differ_are_as_good_as_the_best_of_all() -> None:
    chosen = 0
    for place, request in enumerate(stagewise_requests(15)):
        if place not in (6, 7, 8, 13, 14):
            continue
        plan = planned(request)
        same = planned(replace(request, search=replace(request.search, stage_degrees=StageDegrees.SAME)))
        least_s = min(least_step_s(request), same.certificate.objective or math.inf)
        assert plan.feasible == (least_s < math.inf)
        if plan.feasible:
            assert plan.certificate.objective == pytest.approx(least_s, rel=1e-9)
            assert plan.certificate.status is Status.OPTIMAL
        if any(stage.shardings for stage in plan.stages):
            chosen += 1
            again = predict_training(request, plan)
            assert again.predicted == plan.predicted
            assert again.stages == plan.stages
    assert chosen == 4


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
    group = request.cluster.groups[0]
    with pytest.raises(WorkloadError, match="equal nodes"):
        planned(replace(request, cluster=Cluster((group, replace(group, name="other")))))


def test_stages_of_any_sizes_fill_whole_nodes() -> None:
    (request,) = stagewise_requests(1)
    group = replace(request.cluster.groups[0], node=part_of_node(request.cluster.groups[0].node, 8), nodes=3)
    large = replace(request, cluster=Cluster((group,)))
    assert stage_sizes(large) == (1, 2, 4, 8, 16)
    moving = replace(large, search=replace(large.search, offload_optimizer=(0.0, 0.5)))
    assert stage_sizes(moving) == (8, 16)
    ranges = laid_out([1, 8, 2, 1, 8, 4])
    assert [(each.first, each.count) for each in ranges] == [(22, 1), (0, 8), (20, 2), (23, 1), (8, 8), (16, 4)]
