"""One sharding problem of a block for several kinds of devices, which run the same strategies."""

from __future__ import annotations

import numpy as np

from meshwright.solver.blocks.intra_op import IntraOpProblem, ReshardEdge


def joined(problems: list[IntraOpProblem]) -> IntraOpProblem:
    """One problem whose objectives are those of all, for operators that run the same strategy in each."""
    if len(problems) == 1:
        return problems[0]
    n = problems[0].n_objectives
    nodes = tuple(
        np.concatenate([costs[:, :n] for costs in per_node], axis=1)
        for per_node in zip(*(p.node_costs for p in problems), strict=True)
    )
    ends = sorted({(edge.source, edge.target) for p in problems for edge in p.edges})
    edges = []
    for source, target in ends:
        shape = (len(nodes[source]), len(nodes[target]), n)
        parts = [
            sum((e.cost[:, :, :n] for e in p.edges if (e.source, e.target) == (source, target)), np.zeros(shape))
            for p in problems
        ]
        edges.append(ReshardEdge(source, target, np.concatenate(parts, axis=2)))
    return IntraOpProblem(nodes, tuple(edges), n_objectives=n * len(problems))
