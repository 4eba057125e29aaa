"""Ways to run a stage of so many devices of a node group: every candidate, sharding and recompute mode that no other beats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.solver.control import SearchStopped, Stop, heed
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.stage_table import FloatArray, Sharding, StageTable
from meshwright.solver.training.forms.stagewise.stage_sizes import Borders
from meshwright.solver.training.space.candidates import Candidate, families
from meshwright.solver.training.space.schedules import PLAIN


@dataclass(frozen=True, eq=False)
class Way:
    """One way to run a stage, under one recompute mode; ``boundary_s`` is what a micro-batch's sends take between each of the
    borders that `stage_ways` was asked for."""

    costs: TrainingCosts
    candidate: Candidate
    sharding: Sharding
    mode: Recompute
    table: StageTable
    boundary_s: tuple[float, ...]


def stage_ways(request: TrainingRequest, borders: Sequence[Borders], *, stop: Stop) -> dict[int, list[Way]] | None:
    """Ways to run a stage of `stage_sizes.sized_request` by the number of micro-batches; those that others beat between all of
    these borders left out. None when stopped."""
    found: dict[int, list[Way]] = {}
    costs, layers = TrainingCosts(request), _unlike_layers(request.model)
    try:
        with costs.stopped_by(stop):
            for family in families(request):
                heed(stop)
                if PLAIN in family.pipelinings:
                    known = found.setdefault(family.n_microbatches, [])
                    for candidate in family.candidates():
                        heed(stop)
                        if candidate.pipelining == PLAIN:
                            known += _of_candidate(costs, candidate, borders)
        return {count: _unbeaten(ways, layers, stop) for count, ways in found.items()}
    except SearchStopped:
        return None


def stage_table(costs: TrainingCosts, candidate: Candidate, sharding: Sharding, borders: Borders) -> StageTable:
    """The table of a stage between these borders."""
    table = costs.table(candidate, costs.stage_kinds(candidate)[0], sharding)
    return table if borders == (None, None) else replace(table, boundary_s=_boundary_s(costs, candidate, borders))


def _boundary_s(costs: TrainingCosts, candidate: Candidate, borders: Borders) -> float:
    kind = costs.stage_kinds(candidate)[0]
    links = tuple(own if link is None else link for link, own in zip(borders, kind.borders, strict=True))
    between = replace(kind, borders=links)
    return max(costs.boundary_s(candidate, between, setting) for setting in costs.settings(candidate, kind))


def _of_candidate(costs: TrainingCosts, candidate: Candidate, borders: Sequence[Borders]) -> Iterator[Way]:
    kinds = costs.stage_kinds(candidate)
    boundary_s = tuple(_boundary_s(costs, candidate, each) for each in borders)
    for sharding in costs.shardings(candidate, kinds):
        table = costs.table(candidate, kinds[0], sharding)
        for row, mode in enumerate(candidate.recompute):
            yield Way(costs, candidate, sharding, mode, _only(table, row), boundary_s)


def _only(table: StageTable, row: int) -> StageTable:
    """The table of one recompute mode."""
    return replace(
        table,
        time_s=table.time_s[row : row + 1],
        activation_bytes=table.activation_bytes[row : row + 1],
        transient_bytes=table.transient_bytes[row : row + 1],
        parts=replace(table.parts, host_activation_bytes=table.parts.host_activation_bytes[row : row + 1]),
    )


def _unlike_layers(model: ModelGraph) -> list[int]:
    """Layers that stand for all: copies of a block cost the same, but for the model's first layer."""
    return sorted({0, *{name: layer for layer, name in enumerate(model.layers)}.values()})


def _unbeaten(ways: list[Way], layers: list[int], stop: Stop) -> list[Way]:
    """Ways that no other beats or equals in every cost of every layer; of equal ones the first. Raises SearchStopped."""
    if not ways:
        return []
    costs = np.array([_losses(way, layers) for way in ways])
    order = np.lexsort((np.arange(len(ways)), costs.sum(axis=1)))
    kept: list[int] = []
    for index in order:
        heed(stop)
        if not kept or not (costs[kept] <= costs[index]).all(axis=1).any():
            kept.append(int(index))
    return [ways[index] for index in sorted(kept)]


def _losses(way: Way, layers: list[int]) -> FloatArray:
    """Everything of which less is better."""
    table = way.table
    host = table.parts.host_activation_bytes[0], table.parts.host_static_bytes, table.parts.nvme_bytes
    columns = (table.time_s[0], table.activation_bytes[0], table.transient_bytes[0], table.static_bytes, table.extra_s, *host)
    rest = [
        *way.boundary_s,
        table.step_s,
        -table.capacity_bytes,
        -table.parts.host_capacity_bytes,
        -table.parts.nvme_capacity_bytes,
    ]
    return np.concatenate([*(column[layers] for column in columns), rest])
