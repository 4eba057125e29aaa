"""The order of ranks: whether those of a stage or those of a replica lie together."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.solver.answer.stage import DeviceRange
from meshwright.solver.blocks.mesh import stage_borders
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.carried_choices import MeshChoices
from meshwright.solver.problem.choices import Launcher, Space, StageDegrees, TpOverlap
from meshwright.solver.problem.declared.rank_order import RankOrder
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.training.space.candidates import families
from meshwright.solver.training.space.meshes import Mesh
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.enumerated import enumerated, is_the_best
from tests.unit.solver.training.instances import random_request
from tests.unit.solver.training.planned import planned

PP, DP = RankOrder.PP_OUTERMOST, RankOrder.DP_OUTERMOST
OF_REPLICAS = MeshChoices(DP)
BETTER = (67, 88, 91, 112, 182, 395)
"""Seeds of requests whose best plan of two stages has dp outermost."""


def in_order(seed: int, *orders: RankOrder) -> TrainingRequest:
    """A random request of two stages with several replicas each."""
    request = random_request(seed)
    search = replace(
        request.search,
        rank_order=orders,
        pp=(2,),
        dp=(2, 4),
        microbatch=(1,),
        recompute=request.search.recompute[:1],
        offload_optimizer=(),
        offload_activations=(),
        tp_overlap=(TpOverlap.EXPOSED,),
    )
    return replace(request, search=search)


def ranks_of(mesh: Mesh) -> list[list[int]]:
    runs = (mesh.ranks_of_stage(position) for position in range(mesh.pp))
    return [[start + place for start in of.starts for place in range(of.length)] for of in runs]


def test_groups_are_those_of_the_survey() -> None:
    """Its Figures 4 and 5, (dp, pp, tp, cp) of (2, 2, 2, 1) and (2, 2, 2, 2): replicas are ranks 0 to 3 and 4 to 7, and the
    first stage of the first replica has ranks 0 and 1; with cp replicas are twice as long."""
    assert ranks_of(Mesh(dp=2, pp=2, tp=2, cp=1, choices=OF_REPLICAS)) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert ranks_of(Mesh(dp=2, pp=2, tp=2, cp=2, choices=OF_REPLICAS)) == [
        [0, 1, 2, 3, 8, 9, 10, 11],
        [4, 5, 6, 7, 12, 13, 14, 15],
    ]
    assert ranks_of(Mesh(dp=2, pp=2, tp=2, cp=1)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_on_one_node_the_order_changes_nothing() -> None:
    for seed in range(10):
        request = random_request(seed)
        node = request.cluster.groups[0].node
        one = NodeGroup("one", replace(node, devices_per_node=8), 1)
        costs = TrainingCosts(replace(request, cluster=Cluster((one,))))
        for dp, tp, pp, cp in product((1, 2, 4), repeat=4):
            if dp * tp * pp * cp == 8:
                kinds = [
                    costs._stage_kinds(Mesh(dp=dp, tp=tp, pp=pp, cp=cp, choices=MeshChoices(order)), ()) for order in RankOrder
                ]
                assert kinds[0] == kinds[1]


def test_of_plans_that_are_as_fast_the_usual_order_is_taken() -> None:
    for seed in range(15):
        request = in_order(seed, PP, DP)
        node = request.cluster.groups[0].node
        one = Cluster((NodeGroup("one", replace(node, devices_per_node=request.cluster.n_devices), 1),))
        plan, usual = (
            flat(planned(replace(request, cluster=one, search=replace(request.search, rank_order=orders))))
            for orders in ((PP, DP), ())
        )
        assert plan.rank_order is PP
        assert (plan.axes, plan.stages, plan.predicted) == (usual.axes, usual.stages, usual.predicted)


@pytest.mark.parametrize("seed", BETTER)
def test_the_better_order_is_found_checked_and_predicted(seed: int) -> None:
    request = in_order(seed, PP, DP)
    plan, usual = planned(request), planned(in_order(seed))
    assert flat(plan).rank_order is DP
    assert usual.certificate.objective is not None and plan.certificate.objective is not None
    assert plan.certificate.objective < usual.certificate.objective
    assert is_the_best(plan, enumerated(request))
    again = predict_training(request, plan)
    assert (again.predicted, again.layout) == (plan.predicted, plan.layout)


def test_the_checker_knows_which_ranks_a_stage_has_and_who_asked_for_the_order() -> None:
    request = in_order(BETTER[0], PP, DP)
    plan = planned(request)
    stages = flat(plan).stages
    needed = sum(devices.count for devices in stages[0].devices)
    in_a_row = tuple(replace(stage, devices=(DeviceRange(i * needed, needed),)) for i, stage in enumerate(stages))

    def rules(*, asked: TrainingRequest = request, **fields: object) -> set[Rule]:
        return {violation.rule for violation in check(with_fields(plan, **fields), asked)}

    assert Rule.DEVICES in rules(stages=in_a_row)
    assert Rule.DEVICES in rules(rank_order=PP)
    assert Rule.SEARCH in rules(asked=in_order(BETTER[0]))
    assert rules(stages=in_a_row, rank_order=PP, asked=in_order(BETTER[0], DP)) >= {Rule.SEARCH}
    other = replace(request, search=replace(request.search, launcher=Launcher.TORCHTITAN))
    assert Rule.LAUNCHER in rules(asked=other)


def test_launchers_have_the_orders_that_they_can_start() -> None:
    orders: dict[Launcher, set[RankOrder]] = {}
    for seed in range(60):
        request = random_request(seed)
        search = replace(request.search, space=Space.LAUNCHABLE, rank_order=(PP, DP))
        for family in families(replace(request, search=search)):
            mesh = family.mesh
            orders.setdefault(search.launcher, set()).add(mesh.choices.rank_order)
            if mesh.choices.rank_order is DP:
                # Megatron-LM's two generators of ranks have one dp.
                assert mesh.pp > 1 and mesh.dp > 1 and mesh.expert_tp * mesh.ep == mesh.tp * mesh.cp
    assert orders == {Launcher.MEGATRON_LM: {PP, DP}, Launcher.TORCHTITAN: {PP}, Launcher.DEEPSPEED: {PP}}


def test_neighbours_of_a_replica_share_a_node_where_it_fits_one() -> None:
    cluster = Cluster((NodeGroup("a", node_type("dgx-h100"), 4),))
    mesh = Mesh(dp=8, tp=1, pp=4, cp=1, choices=OF_REPLICAS)
    ranks = [mesh.ranks_of_stage(position) for position in range(mesh.pp)]
    inside, across = (
        [stage_borders(cluster, i, pp=4, ranks=length, runs=runs) for i in range(4)] for length, runs in ((1, 8), (8, 1))
    )
    assert [of.length for of in ranks] == [1] * 4
    assert not any(link.spans_nodes for links in inside for link in links)
    assert all(link.spans_nodes for links in across for link in links)
    # Replicas of three stages on nodes of eight: some of them are cut by the border of a node.
    assert any(link.spans_nodes for link in stage_borders(cluster, 1, pp=3, ranks=1, runs=10))


def test_stages_that_differ_lie_one_behind_the_other() -> None:
    request = random_request(88)
    search = replace(request.search, space=Space.FREE, stage_degrees=StageDegrees.ANY, tp_overlap=(), rank_order=(DP,))
    with pytest.raises(WorkloadError, match="no replicas whose ranks could lie together"):
        plan_training(replace(request, search=search), stop=never_stop, progress=ignore_progress)
