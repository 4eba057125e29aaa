"""Candidates that fit under no sharding: found by the least of each block, and really none fits."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Space, TpOverlap
from meshwright.solver.problem.implementation import StatedImplementation
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.planner import plan_training
from meshwright.solver.training.search.best_first import crowded_candidates
from meshwright.solver.training.search.partition import MemoryShortfall, partition_stages
from meshwright.solver.training.space.candidates import Candidate, families
from tests.unit.solver.training.instances import random_request


def crowded_request() -> TrainingRequest:
    """A request in the free space whose devices are too small: hundreds of shardings, none of which fits."""
    asked = random_request(200002)
    degrees = replace(asked.search, space=Space.FREE, tp=(2,), cp=(1,), dp=(2,), pp=(2,), microbatch=(1,))
    workload = replace(asked.workload, implementation=StatedImplementation(profile="hand-fused"))
    search = replace(degrees, offload_optimizer=(0.0,), offload_activations=(0.0,), tp_overlap=(TpOverlap.EXPOSED,))
    return replace(asked, workload=workload, search=search)


def alike(asked: TrainingRequest) -> tuple[Candidate, ...]:
    """Four candidates of the space that differ in schedule alone."""
    groups = itertools.groupby(next(families(asked)).candidates(), key=lambda candidate: candidate.recompute)
    return max((tuple(group) for _, group in groups), key=len)[:4]


@pytest.mark.slow
@pytest.mark.parametrize(("capacity", "n_crowded"), [(1.0, 4), (1.3, 2)])
def test_crowded_candidates_fit_under_no_sharding(capacity: float, n_crowded: int) -> None:
    asked = crowded_request()
    groups = tuple(
        replace(g, node=replace(g.node, device=replace(g.node.device, memory_bytes=int(capacity * g.node.device.memory_bytes))))
        for g in asked.cluster.groups
    )
    asked = replace(asked, cluster=replace(asked.cluster, groups=groups))
    costs, candidates = TrainingCosts(asked), alike(asked)
    kinds = costs.stage_kinds(candidates[0])
    shardings = tuple(costs.shardings(candidates[0], kinds))
    roomiest, crowded = crowded_candidates(candidates, shardings, kinds, costs)
    assert len(shardings) > 20 and len(candidates) == 4
    assert roomiest in shardings
    fitting = {
        candidate
        for candidate in candidates
        for sharding in shardings
        if not isinstance(partition_stages(candidate, costs.stage_tables(candidate, sharding, kinds)), MemoryShortfall)
    }
    # One block's least of each kind of memory comes from one sharding here, so that the relaxation is exact.
    assert fitting == set(candidates) - set(crowded)
    assert len(crowded) == n_crowded


@pytest.mark.slow
def test_an_infeasible_request_is_refused_without_trying_every_sharding() -> None:
    asked = crowded_request()
    plan = plan_training(asked, stop=never_stop, progress=ignore_progress)
    assert not plan.feasible and plan.reason is not None and plan.reason.constraint == "device_memory"
    assert plan.search.evaluated <= plan.search.candidates
