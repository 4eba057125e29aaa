"""Lost devices, slow links and spines: idle devices are searched exactly, and sends cost what their own borders cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, part_of_node
from meshwright.costmodels.errors import PlanFileError, WorkloadError
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.blocks.mesh import stage_borders
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective, Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.switching import switch_bytes
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.training.space.meshes import meshes
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.enumerated import enumerated, is_the_best
from tests.unit.solver.training.instances import random_request


def planned(request: TrainingRequest, **search: object) -> tuple[Plan, TrainingRequest]:
    asked = replace(request, search=replace(request.search, **search))  # type: ignore[arg-type]
    plan = plan_training(asked, stop=never_stop, progress=ignore_progress)
    assert check(plan, asked) == ()
    return plan, asked


def small_request(seed: int, *devices: int) -> TrainingRequest:
    """A random request on one node of so many devices in each group."""
    request = random_request(seed)
    node = request.cluster.groups[0].node
    groups = tuple(NodeGroup(f"group-{i}", part_of_node(node, n), 1) for i, n in enumerate(devices))
    return replace(request, cluster=Cluster(groups), search=replace(request.search, pp=()))


@pytest.mark.parametrize("seed", [5, 17])
def test_idle_devices_are_as_good_as_the_best_part_of_the_cluster(seed: int) -> None:
    request = small_request(seed, 3, 2)
    plan, asked = planned(request, idle_groups=("group-0", "group-1"))
    every = enumerated(asked)
    assert is_the_best(plan, every)
    if plan.feasible:
        assert plan.certificate.status is Status.OPTIMAL
        assert predict_training(asked, plan).predicted == plan.predicted


def crippled() -> tuple[Plan, TrainingRequest]:
    """A plan that leaves devices idle: three devices can't share a batch of powers of two as well as two."""
    for seed in range(60):
        plan, asked = planned(small_request(seed, 3), idle_groups=("group-0",))
        if flat(plan).idle_devices:
            return plan, asked
    pytest.fail("no request is planned better with idle devices")


def test_idle_devices_are_checked_predicted_and_moved_to() -> None:
    plan, asked = crippled()
    refused = replace(asked, search=replace(asked.search, idle_groups=()))
    assert Rule.SEARCH in {violation.rule for violation in check(plan, refused)}
    for wrong in ({"group-0": 4}, {"other": 1}, {"group-0": 3}):
        broken = with_fields(plan, idle_devices=wrong)
        assert Rule.DEVICES in {violation.rule for violation in check(broken, asked)}
        with pytest.raises(PlanFileError, match="idle"):
            predict_training(asked, broken)
    assert any("leaves" in note for note in plan.notes)
    answered = AnsweredRequest(plan, asked)
    assert switch_bytes(answered, answered).moved_bytes == 0.0


def test_idle_groups_that_can_not_be_are_refused() -> None:
    request = small_request(1, 3)
    with pytest.raises(WorkloadError, match="names no node group"):
        planned(request, idle_groups=("nodes",))
    with pytest.raises(WorkloadError, match="whole cluster"):
        planned(replace(request, objective=Objective.DEVICES), idle_groups=("group-0",))
    node = request.cluster.groups[0].node
    many = tuple(NodeGroup(f"g{i}", part_of_node(node, 8), 1) for i in range(3))
    with pytest.raises(WorkloadError, match="too many"):
        planned(replace(request, cluster=Cluster(many)), idle_groups=("g0", "g1", "g2"))


def slow_behind(request: TrainingRequest, factor: float) -> Cluster:
    """Four nodes of two devices, those of the second half with slower cards."""
    node = part_of_node(request.cluster.groups[0].node, 2)
    slow = replace(node, inter=replace(node.inter, bytes_per_s=node.inter.bytes_per_s / factor))
    return Cluster((NodeGroup("fast", node, 2), NodeGroup("slow", slow, 2)))


def test_a_slow_link_costs_the_stages_beside_it() -> None:
    request = replace(random_request(4), search=Search(space=Space.LAUNCHABLE))
    request = replace(request, cluster=slow_behind(request, 50.0))
    costs = TrainingCosts(request)
    mesh = next(mesh for mesh in meshes(request) if (mesh.pp, mesh.tp, mesh.cp) == (4, 1, 1))
    links = [stage_borders(request.cluster, position, pp=mesh.pp, ranks=mesh.stage_devices) for position in range(mesh.pp)]
    fast, slow = links[0][0].inter_bytes_per_s, links[3][0].inter_bytes_per_s
    assert fast == 50.0 * slow
    assert [[link.inter_bytes_per_s for link in pair] for pair in links] == [
        [fast, fast],
        [fast, slow],
        [slow, slow],
        [slow, slow],
    ]
    kinds = costs._stage_kinds(mesh, ())
    assert [kind.borders for kind in kinds] == links


def test_stages_smaller_than_nodes_cross_the_network_at_some_borders_only() -> None:
    request = random_request(4)
    cluster = Cluster((NodeGroup("a", part_of_node(request.cluster.groups[0].node, 4), 2),))
    crossing = [[link.spans_nodes for link in stage_borders(cluster, i, pp=4, ranks=2)] for i in range(4)]
    assert crossing == [[False, False], [False, True], [True, False], [False, False]]
    # Stages of three on nodes of four: every border has a pair of ranks on two nodes.
    twelve = Cluster((NodeGroup("a", part_of_node(request.cluster.groups[0].node, 4), 3),))
    assert all(link.spans_nodes for i in range(4) for link in stage_borders(twelve, i, pp=4, ranks=3))
    assert stage_borders(cluster, 0, pp=1, ranks=8) == ()


def test_a_faster_link_or_spine_is_never_slower() -> None:
    for seed in (4, 9):
        request = random_request(seed)
        steps = []
        for factor in (50.0, 5.0, 1.0):
            plan, _ = planned(replace(request, cluster=slow_behind(request, factor)))
            steps.append(plan.certificate.objective)
        spines = []
        for per_leaf in (None, 2, 4):
            cluster = replace(slow_behind(request, 1.0), oversubscription=8.0, nodes_per_leaf=per_leaf)
            spines.append(planned(replace(request, cluster=cluster))[0].certificate.objective)
        for times in (steps, spines):
            known = [step_s for step_s in times if step_s is not None]
            assert len(known) in (0, 3)
            assert known == sorted(known, reverse=True)
