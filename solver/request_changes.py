"""Changes that requests of any kind can have, and how they are put in words and in fields of the request document."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.solver.problem.choice import Form
from meshwright.solver.problem.request import PlanRequest, ServingRequest, TrainingRequest
from meshwright.solver.problem.search import LEDGER, Search

Asked = TypeVar("Asked", TrainingRequest, ServingRequest)

FEW = (1, 2, 3)
MORE_NODES = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0)
"""Sizes of the first node group that are tried, over what it has, after a few nodes more."""

MOST_LIFTED = 4
"""Restrictions that are lifted in turn, at most."""

DIGITS = 4
"""Significant digits of a target that is suggested."""


@dataclass(frozen=True, slots=True)
class Change:
    """A request with something changed: in words, and by fields of its document as JSON."""

    words: str
    set: Mapping[str, str]
    request: PlanRequest


def beside(first: Change, second: Change) -> Change:
    """Return both changes together; the second is one of the first's request."""
    return Change(f"{first.words}, and {second.words}", {**first.set, **second.set}, second.request)


def searching(request: Asked, words: str, changes: Mapping[str, Any]) -> Change:
    """Return the request with other values of its search."""
    values = {f"search.{name}": json.dumps(value) for name, value in changes.items()}
    return Change(words, values, replace(request, search=replace(request.search, **changes)))


def restrictions_lifted(request: Asked, forms: frozenset[Form]) -> list[Sequence[Change]]:
    """Return a ladder for each choice of plans of these forms that the request restricts to some of its values, where naming
    none allows all; at most MOST_LIFTED."""
    search, found = request.search, list[Sequence[Change]]()
    for name, entry in LEDGER.items():
        value = getattr(search, name)
        if entry.choice.forms & forms and isinstance(value, tuple) and value != entry.default:
            default = next(each.default for each in fields(Search) if each.name == name)
            found.append((searching(request, f"lift search.{name}", {name: default}),))
    return found[:MOST_LIFTED]


def more_nodes(request: Asked, sizes: Iterable[int] = ()) -> tuple[Change, ...]:
    """Return the ladder of the request on more nodes of its first group, the fewest first; of these sizes if some are given."""
    cluster: Cluster = request.cluster
    first: NodeGroup = cluster.groups[0]
    changes = list[Change]()
    tried = set(sizes) or {*(first.nodes + n for n in FEW), *(math.ceil(factor * first.nodes) for factor in MORE_NODES)}
    for nodes in sorted(size for size in tried if size > first.nodes):
        larger = replace(cluster, groups=(replace(first, nodes=nodes), *cluster.groups[1:]))
        words = f"{nodes} nodes of {first.node.name} instead of {first.nodes}"
        changes.append(Change(words, {"cluster.groups.0.nodes": json.dumps(nodes)}, replace(request, cluster=larger)))
    return tuple(changes)


def with_targets(request: Asked, targets: Mapping[str, float]) -> Change:
    """Return the request with other targets, by their names."""
    words = " and ".join(f"slo.{name}: {value:g}" for name, value in targets.items())
    values = {f"slo.{name}": json.dumps(value) for name, value in targets.items()}
    return Change(words, values, replace(request, slo=replace(request.slo, **dict(targets))))


def rounded(value: float, *, up: bool, digits: int = DIGITS) -> float:
    """Return the value with few significant digits, never below it with ``up``, else never above."""
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    return float(f"{(math.ceil(value / unit) if up else math.floor(value / unit)) * unit:.{digits}g}")
