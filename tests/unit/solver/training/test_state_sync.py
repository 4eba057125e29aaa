"""Time of sharing gradients and weights where ZeRO shards within groups of the ranks."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.cluster.rank_runs import RankRuns
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.implementation import GradientReduction
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.solver.blocks.mesh import HybridGroups, stage_topology
from meshwright.solver.blocks.sharding_problem import Criterion
from meshwright.solver.problem.request import TrainingWorkload
from meshwright.solver.training.costs.state_memory import SharedParameters, state_sync, sync_after_backward

PARAMETERS = 3e8
WORKLOAD = TrainingWorkload("training", global_batch=8, seq_len=4096)
"""bf16 weights, gradients of ``GRADIENT`` bytes."""
GRADIENT, WEIGHT = WORKLOAD.gradient_dtype.size_bytes, WORKLOAD.precision.size_bytes
NOTHING_TO_HIDE_UNDER = np.zeros((1, len(Criterion)))


def two_nodes() -> HybridGroups:
    """Two nodes of eight devices, each a group."""
    cluster = Cluster((NodeGroup("a", node_type("dgx-h100"), 2),))
    return stage_topology(cluster, RankRuns(0, 16), dp=16, tp=1, cp=1, shard_ranks=(8,)).hybrid_of(8)


def levels_s(groups: HybridGroups) -> tuple[float, float, float]:
    """Seconds of scattering gradients within a group, of all-reducing shards between groups, of gathering weights within."""
    within = float(collective_s(Collective.REDUCE_SCATTER, PARAMETERS * GRADIENT, groups.shards))
    between = float(collective_s(Collective.ALL_REDUCE, PARAMETERS * GRADIENT / 8, groups.replicas))
    return within, between, float(collective_s(Collective.ALL_GATHER, PARAMETERS * WEIGHT, groups.shards))


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_groups_scatter_within_sum_between_and_gather_within(zero_stage: int) -> None:
    groups = two_nodes()
    shared = [SharedParameters(np.array([PARAMETERS]), groups.shards, groups)]
    sync = state_sync(zero_stage, shared, NOTHING_TO_HIDE_UNDER, WORKLOAD)
    within, between, gather = levels_s(groups)
    of_step = {1: within + between + gather, 2: between + gather, 3: between}[zero_stage]
    of_microbatch = {1: 0.0, 2: within, 3: within + 2 * gather}[zero_stage]
    assert sync.exposed_step_s[0] == pytest.approx(of_step)
    assert sync.exposed_microbatch_s[0] == pytest.approx(of_microbatch)
    assert sync.hidden_step_s[0] == pytest.approx(0.0)


def test_a_backward_pass_that_is_long_enough_hides_both_levels() -> None:
    groups = two_nodes()
    costs = NOTHING_TO_HIDE_UNDER.copy()
    costs[0, Criterion.FORWARD_S], costs[0, Criterion.TIME_S] = 10.0, 30.0
    sync = state_sync(1, [SharedParameters(np.array([PARAMETERS]), groups.shards, groups)], costs, WORKLOAD)
    within, between, gather = levels_s(groups)
    assert sync.exposed_step_s[0] < 0.2 * (within + between + gather), "what it slows of the compute alone"
    assert sync.exposed_step_s[0] + sync.hidden_step_s[0] == pytest.approx(within + between + gather)


def test_gradients_in_one_piece_go_through_both_levels_or_in_fp32_to_everyone() -> None:
    groups = two_nodes()
    shared = [SharedParameters(np.array([PARAMETERS]), groups.shards, groups)]

    def seconds(reduction: GradientReduction) -> float:
        sync = sync_after_backward(1, shared, WORKLOAD, reduction=reduction, mean_stage=lambda held: float(held.sum()))
        return float(sync.exposed_step_s[0])

    within, between, gather = levels_s(groups)
    assert seconds(GradientReduction.AFTER_BACKWARD) == pytest.approx(within + between + gather)
    everyone = float(collective_s(Collective.ALL_REDUCE, PARAMETERS * 4, groups.everyone))
    assert seconds(GradientReduction.IN_FP32_AFTER_BACKWARD) == pytest.approx(everyone + gather)
