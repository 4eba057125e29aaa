"""Stage borders and recompute modes of one member: by the exact stage partition, or the best even cut into chunks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.layer_dag import LayerDag
from meshwright.solver.stages import memory_shortage, partition_layers
from meshwright.solver.stages.downsets import DagFigures, dag_shortage, partition_dag
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, StageSpan, units_in_flight
from meshwright.solver.training.costs.part_borders import (
    EvenCuts,
    FirstLayers,
    cost_even_cuts,
    fastest_that_fits,
    roomiest,
)
from meshwright.solver.training.costs.stage_table import FloatArray, StageTable
from meshwright.solver.training.search.bounds import Member
from meshwright.solver.training.space.candidates import Candidate


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a member does not fit: the stage that is worst off in its roomiest split (framework overhead not counted)."""

    stage: int
    need_bytes: float
    have_bytes: float

    @property
    def lacking_bytes(self) -> float:
        """Memory that is missing."""
        return self.need_bytes - self.have_bytes


class _Limited(TypedDict, total=False):
    """Arguments that every partitioner takes for a limit."""

    parameters: FloatArray
    most_parameters: float


class _Costs(TypedDict):
    """Arguments that every partitioner takes alike."""

    time_s: FloatArray
    static_bytes: FloatArray
    activation_bytes: FloatArray
    transient_bytes: FloatArray
    extra_s: FloatArray
    boundary_s: FloatArray
    step_s: FloatArray
    beside_s: FloatArray


@dataclass(frozen=True, eq=False)
class ParameterLimit:
    """Parameters of each layer [layer], of which no device of a stage has a part of more than ``most``."""

    parameters: FloatArray
    most: float

    def of_stage(self, candidate: Candidate) -> float:
        """The most that a stage of a candidate may hold."""
        return self.most * candidate.mesh.stage_devices


def cut(member: Member, costs: TrainingCosts, limit: ParameterLimit | None = None) -> Decision | Shortfall:
    """The fastest decision of a member that fits and keeps the limit, or by how much the roomiest of all lack memory."""
    candidate, tables = member.candidate, member.tables
    if not candidate.choices.lacks_layers:
        spans = partition_stages(candidate, tables, limit)
        return spans if isinstance(spans, Shortfall) else Decision(candidate, member.sharding, spans)
    found = partition_some_layers(candidate, tables, costs.recomputed_layers, costs.allowed_layers, limit)
    if isinstance(found, Shortfall):
        return found
    return Decision(candidate.of_first_layers(found.number), member.sharding, found.spans)


def partition_stages(
    candidate: Candidate, tables: tuple[StageTable, ...], limit: ParameterLimit | None = None
) -> tuple[StageSpan, ...] | Shortfall:
    """The fastest stages that fit and keep the limit, or by how much the roomiest of all lack memory."""
    if not candidate.pipelining.any_borders:
        return _even_parts(candidate, tables, limit)
    if tables[0].dag is not None:
        return _parts_of_branches(candidate, tables, tables[0].dag, limit)
    found = partition_layers(
        **_limited(candidate, limit),
        **_costs(candidate, tables),
        capacity_bytes=_capacities(tables),
        in_flight=_in_flight(candidate),
        n_microbatches=candidate.n_microbatches,
        waiting=tables[0].waiting,
    )
    if found is None:
        return smallest_shortfall(candidate, tables)
    return tuple(StageSpan(stage.first, stage.last, candidate.recompute[stage.config]) for stage in found.stages)


@dataclass(frozen=True, slots=True)
class SomeLayers:
    """Even parts of which each recomputes its first layers whole, as many of those that can be, or all where it has fewer."""

    number: int
    spans: tuple[StageSpan, ...]


def partition_some_layers(
    candidate: Candidate,
    tables: tuple[StageTable, ...],
    again: npt.NDArray[np.bool_],
    allowed: tuple[int, ...] = (),
    limit: ParameterLimit | None = None,
) -> SomeLayers | Shortfall:
    """The fastest even parts that recompute some of their layers, whose number is one of ``allowed`` if these are named.

    ``again`` [layer] says which layers can be recomputed. Each layer more takes longer, so for each cut the least number with
    which it fits is best.
    """
    costed = cost_even_cuts(candidate, tables)
    most = FirstLayers(0, again).most_in_a_part(costed.cuts)
    kept = np.ones(len(most), bool)
    if limit is not None:
        kept = np.all(costed.sums_of_ranks(limit.parameters) <= limit.of_stage(candidate), axis=1)
    # What is left out with the least of both modes fits with no number.
    open_ = kept & (costed.need_bytes <= costed.capacity_bytes).all(axis=1)
    best_s, best, number = np.inf, -1, 0
    for n in allowed or range(1, int(most.max())):
        # With all of their layers, parts are those of the mode full.
        trying = open_ & (n < most)
        if not trying.any():
            continue
        of_number = cost_even_cuts(candidate, tables, FirstLayers(n, again))
        fits = trying & (of_number.need_bytes <= of_number.capacity_bytes).all(axis=1)
        step_s = np.where(fits, of_number.step_s, np.inf)
        fastest = int(np.argmin(step_s))
        if step_s[fastest] < best_s:
            best_s, best, number = float(step_s[fastest]), fastest, n
        open_ &= ~fits & (of_number.step_s < best_s)
    if best < 0:
        return _shortfall(costed)
    borders, ends = costed.cuts[best].tolist(), FirstLayers(number, again).ends(costed.cuts[best : best + 1])[0].tolist()
    spans = (
        StageSpan(first, end - 1, Recompute.FULL, kept_from=kept_from)
        for (first, end), kept_from in zip(itertools.pairwise(borders), ends, strict=True)
    )
    return SomeLayers(number, tuple(spans))


def _limited(candidate: Candidate, limit: ParameterLimit | None) -> _Limited:
    return _Limited() if limit is None else _Limited(parameters=limit.parameters, most_parameters=limit.of_stage(candidate))


def _even_parts(
    candidate: Candidate, tables: tuple[StageTable, ...], limit: ParameterLimit | None
) -> tuple[StageSpan, ...] | Shortfall:
    costed = cost_even_cuts(candidate, tables)
    allowed = None
    if limit is not None:
        allowed = np.all(costed.sums_of_ranks(limit.parameters) <= limit.of_stage(candidate), axis=1)
    best = fastest_that_fits(costed, allowed=allowed)
    if best is None:
        return _shortfall(costed)
    borders = costed.cuts[best].tolist()
    (mode,) = candidate.recompute
    return tuple(StageSpan(first, end - 1, mode) for first, end in itertools.pairwise(borders))


def _parts_of_branches(
    candidate: Candidate, tables: tuple[StageTable, ...], dag: LayerDag, limit: ParameterLimit | None
) -> tuple[StageSpan, ...] | Shortfall:
    figures = replace(_dag_figures(candidate, tables), **_limited(candidate, limit))
    found = partition_dag(dag, figures, n_microbatches=candidate.n_microbatches, waiting=tables[0].waiting)
    if found is None:
        return Shortfall(*dag_shortage(dag, figures))
    return tuple(
        StageSpan(stage.layers[0], stage.layers[-1], candidate.recompute[stage.config], stage.layers) for stage in found.stages
    )


def _dag_figures(candidate: Candidate, tables: tuple[StageTable, ...]) -> DagFigures:
    return DagFigures(
        **_costs(candidate, tables),
        capacity_bytes=np.array([max(0.0, table.capacity_bytes) for table in tables]),
        in_flight=np.array(units_in_flight(candidate)[0], np.int64),
        side_bytes=tables[0].side_bytes,
    )


def _costs(candidate: Candidate, tables: tuple[StageTable, ...]) -> _Costs:
    return _Costs(
        time_s=np.array([table.time_s for table in tables]),
        static_bytes=tables[0].static_bytes,
        activation_bytes=_activation_bytes(candidate, tables),
        transient_bytes=tables[0].transient_bytes,
        extra_s=np.array([table.extra_s for table in tables]),
        boundary_s=np.array([table.boundary_s for table in tables]),
        step_s=np.array([table.step_s if position else 0.0 for position, table in enumerate(tables)]),
        beside_s=np.array([table.beside_s for table in tables]),
    )


def smallest_shortfall(candidate: Candidate, tables: tuple[StageTable, ...]) -> Shortfall:
    """The fullest stage of the split and recompute modes that lack least memory."""
    if not candidate.pipelining.any_borders:
        return _shortfall(cost_even_cuts(candidate, tables))
    if tables[0].dag is not None:
        return Shortfall(*dag_shortage(tables[0].dag, _dag_figures(candidate, tables)))
    shortage = memory_shortage(
        static_bytes=tables[0].static_bytes,
        activation_bytes=_activation_bytes(candidate, tables),
        transient_bytes=tables[0].transient_bytes,
        capacity_bytes=_capacities(tables),
        in_flight=_in_flight(candidate),
    )
    assert shortage is not None, "the space has no more stages than layers"
    return Shortfall(shortage.stage, shortage.need_bytes, shortage.have_bytes)


def _shortfall(costed: EvenCuts) -> Shortfall:
    cut, rank = roomiest(costed)
    return Shortfall(rank, float(costed.need_bytes[cut, rank]), float(costed.capacity_bytes[rank]))


def _capacities(tables: tuple[StageTable, ...]) -> npt.NDArray[np.generic]:
    return np.array([max(0.0, table.capacity_bytes) for table in tables])


def _in_flight(candidate: Candidate) -> npt.NDArray[np.generic]:
    return np.array(units_in_flight(candidate)[0], np.int64)


def _activation_bytes(candidate: Candidate, tables: tuple[StageTable, ...]) -> FloatArray:
    """Of one of the units that are in flight."""
    return tables[0].activation_bytes / units_in_flight(candidate)[1]
