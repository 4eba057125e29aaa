"""Variants of a contest instance that a solver must do equally well on: the same problem, told differently or shifted."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

FORBIDDEN = 10**18
JITTER = 0.01

Document = dict[str, Any]


def permuted(document: Document, rng: random.Random) -> Document:
    """Nodes numbered in another order; costs unchanged."""
    problem = document["problem"]
    count = len(problem["nodes"]["costs"])
    order = list(range(count))
    rng.shuffle(order)
    new_index = {old: new for new, old in enumerate(order)}
    nodes = {key: [values[old] for old in order] for key, values in problem["nodes"].items()}
    edges = {
        "nodes": [[new_index[u], new_index[v]] for u, v in problem["edges"]["nodes"]],
        "costs": problem["edges"]["costs"],
    }
    return {"problem": {**problem, "nodes": nodes, "edges": edges}}


def transposed(document: Document, rng: random.Random) -> Document:
    """Every edge named from its other end, its costs transposed."""
    del rng
    problem = document["problem"]
    width = [len(costs) for costs in problem["nodes"]["costs"]]
    pairs = [[v, u] for u, v in problem["edges"]["nodes"]]
    costs = [
        [table[i * width[v] + j] for j in range(width[v]) for i in range(width[u])]
        for (u, v), table in zip(problem["edges"]["nodes"], problem["edges"]["costs"], strict=True)
    ]
    return {"problem": {**problem, "edges": {"nodes": pairs, "costs": costs}}}


def jittered(document: Document, rng: random.Random) -> Document:
    """Every allowed cost changed by up to 1%, each on its own."""

    def shaken(cost: int) -> int:
        return cost if cost >= FORBIDDEN else round(cost * (1 + rng.uniform(-JITTER, JITTER)))

    changed = copy.deepcopy(document)
    for part in ("nodes", "edges"):
        table = changed["problem"][part]
        table["costs"] = [[shaken(cost) for cost in costs] for costs in table["costs"]]
    return changed


def with_limit(factor: float) -> Callable[[Document, random.Random], Document]:
    """More memory: the limit times this factor."""

    def changed(document: Document, rng: random.Random) -> Document:
        del rng
        problem = document["problem"]
        return {"problem": {**problem, "usage_limit": int(problem["usage_limit"] * factor)}}

    return changed


VARIANTS: dict[str, Callable[[Document, random.Random], Document]] = {
    "original": lambda document, rng: document,
    "permuted": permuted,
    "transposed": transposed,
    "jittered": jittered,
    "limit x 1.02": with_limit(1.02),
    "limit x 1.3": with_limit(1.3),
    "limit x 2": with_limit(2.0),
}
