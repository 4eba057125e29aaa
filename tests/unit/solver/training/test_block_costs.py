"""Costs that candidates share are those that each would have alone."""

from __future__ import annotations

import numpy as np

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.solver.blocks.sharding_problem import build_block_problem
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.space.candidates import families


def test_problems_shared_beside_attention_are_those_built_alone() -> None:
    asked = TrainingRequest(
        model("llama-3.1-8b"),
        Cluster((NodeGroup("node", node_type("dgx-h100"), 1),)),
        TrainingWorkload("training", global_batch=16, seq_len=8192),
        search=Search(space=Space.FREE, pp=(1,), tp=(1, 2), microbatch=(1, 2)),
    )
    costs, exchanging = TrainingCosts(asked), 0
    for family in families(asked):
        candidate = next(family.candidates())
        (setting,) = costs.settings(candidate, costs.stage_kinds(candidate)[0])
        exchanging += setting.ulysses > 1
        for name in costs.block_names:
            shared, alone = costs.problem(name, setting), build_block_problem(asked.model, asked.model.block(name), setting)
            assert shared is not None and alone is not None
            assert shared.strategies == alone.strategies
            pairs = zip(shared.problem.node_costs, alone.problem.node_costs, strict=True)
            assert all(np.array_equal(ours, theirs) for ours, theirs in pairs)
            edges = zip(shared.problem.edges, alone.problem.edges, strict=True)
            assert all(a.source == b.source and np.array_equal(a.cost, b.cost) for a, b in edges)
    assert exchanging > 5
