"""The least step time among all plans on all devices of a cluster in its order: every one is costed, shardings and splits in
arrays. `tests.unit.solver.training.test_exhaustive` compares with `every_plan`, plan by plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from meshwright.solver.blocks.tp_strategies import REPLICATED
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.layer_dag import LayerDag, layer_dag
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import StageSpan, held_by_part, positions
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.meshes import Mesh
from tests.unit.solver.training.every_plan import every_split, every_split_of
from tests.unit.solver.training.stage_columns import BY_MODE, Columns, Floats, Table, alike, n_choices

Ints = npt.NDArray[np.int64]

_PLANS_AT_ONCE = 400_000
"""Plans costed in one array, for memory's sake."""


@dataclass
class Least:
    """The number of plans, and the least step time of those that fit, by what a device of the fullest stage has of the model's
    parameters."""

    n_plans: int = 0
    by_parameters: dict[float, float] = field(default_factory=dict)

    @property
    def least_s(self) -> float:
        """The least of all; infinite where none fits."""
        return min(self.by_parameters.values(), default=math.inf)


def least_step(request: TrainingRequest) -> Least:
    """The least of every plan of the request's space, its cluster as it stands."""
    costs, dag, found = TrainingCosts(request), layer_dag(request.model), Least()
    parameters = np.array([request.model.block_parameters(name) for name in request.model.layers])
    for candidates in alike(request):
        n_shardings = n_choices(costs, candidates[0])
        if not n_shardings:
            continue
        columns = Columns(costs, candidates)
        for number, candidate in enumerate(candidates):
            splits = _splits(request.model, dag, candidate)
            found.n_plans += len(splits.number) * n_shardings
            if not len(splits.number):
                continue
            least_s = _least_s(candidate, columns.tables(number), splits, columns.n_combined)
            of_part = np.array([parameters[list(layers)].sum() for layers, _ in splits.parts])[splits.number]
            of_rank = [of_part[:, list(of_rank)].sum(axis=1) for of_rank in positions(candidate)]
            fullest = np.max(of_rank, axis=0) / candidate.mesh.stage_devices
            for each in np.unique(fullest[np.isfinite(least_s)]):
                best_s = float(least_s[fullest == each].min())
                found.by_parameters[float(each)] = min(best_s, found.by_parameters.get(float(each), math.inf))
    return found


@dataclass(frozen=True, eq=False)
class _Splits:
    """Every way to cut a model: ``parts`` are the distinct sets of layers, each with the first that is not recomputed where
    only some are; ``number`` [split, part] says which of them each part is, ``modes`` the row of its recompute mode. Of models
    that branch, ``sent`` tensors go on behind each part and ``sides`` are read beside its layers' entries; of chains one and
    none."""

    parts: list[tuple[tuple[int, ...], int | None]]
    number: Ints
    modes: Ints
    sent: Ints
    sides: Ints


def _splits(model: ModelGraph, dag: LayerDag, candidate: Candidate) -> _Splits:
    if candidate.choices.recompute_layers is not None and candidate.mesh.pp > 1:
        return _arrays(dag, candidate, list(every_split_of(model, candidate)))
    mesh = Mesh(dp=1, tp=1, pp=candidate.mesh.pp, cp=1)
    return _splits_of(dag, Candidate(mesh, 1, 1, 0, REPLICATED, candidate.recompute, candidate.pipelining))


@lru_cache(maxsize=256)
def _splits_of(dag: LayerDag, candidate: Candidate) -> _Splits:
    return _arrays(dag, candidate, list(every_split(dag, candidate)))


def _arrays(dag: LayerDag, candidate: Candidate, splits: list[tuple[StageSpan, ...]]) -> _Splits:
    place: dict[tuple[tuple[int, ...], int | None], int] = {}
    number = [[place.setdefault((tuple(span.numbers), span.kept_from), len(place)) for span in spans] for spans in splits]
    modes = [[candidate.recompute.index(span.recompute) for span in spans] for spans in splits]
    sent = [[1] * len(spans) if dag.is_chain else _sent(dag, spans) for spans in splits]
    sides = [[dag.held_sides(span.numbers) for span in spans] for spans in splits]
    shape = (len(splits), len(splits[0]) if splits else 0)
    number, modes, sent, sides = (np.array(each, np.int64).reshape(shape) for each in (number, modes, sent, sides))
    return _Splits(list(place), number, modes, sent, sides)


def _sent(dag: LayerDag, spans: tuple[StageSpan, ...]) -> list[int]:
    """Tensors that go on behind each stage; its gradients come back from the one behind, so the last counts as sending one."""
    done: list[int] = []
    sent = []
    for span in spans:
        done += span.numbers
        sent.append(max(1, sum(any(reader not in done for reader in dag.readers[layer]) for layer in done)))
    return sent


def _least_s(candidate: Candidate, tables: list[Table], splits: _Splits, n_combined: int) -> Floats:
    """The least step time of each split under all shardings that fit; infinite where none does."""
    step = max(1, _PLANS_AT_ONCE // n_combined)
    sums = {id(table): _Sums(table, splits) for table in tables}
    starts = range(0, len(splits.number), step)
    return np.concatenate([_of_splits(candidate, tables, sums, splits, slice(at, at + step)) for at in starts])


def _of_splits(candidate: Candidate, tables: list[Table], sums: dict[int, _Sums], splits: _Splits, some: slice) -> Floats:
    tail_s: Floats | float = 0.0
    longest_s: Floats | float = 0.0
    fits: npt.NDArray[np.bool_] | bool = True
    waiting = tables[0].one.waiting
    ranks = zip(positions(candidate), tables, held_by_part(candidate), strict=True)
    n_copies = sum(len(of_rank) for of_rank in positions(candidate)) // splits.number.shape[1]
    for rank, (of_rank, table, held) in enumerate(ranks):
        of = sums[id(table)]
        n_sent = splits.sent[some, of_rank[0], None]
        side_bytes = table.one.side_bytes * splits.sides[some, of_rank[0], None]
        time_s = sum(of.total("time_s", part, some) for part in of_rank) / n_copies + table.one.boundary_s * n_sent
        way_s, time_s = time_s + table.one.beside_s * n_sent, np.maximum(time_s, table.one.beside_s * n_sent)
        extra_s = sum(of.total("extra_s", part, some) for part in of_rank) + (table.step_s if rank else 0.0)
        static = sum(of.total("static_bytes", part, some) for part in of_rank)
        kept = _most_held(held, [of.total("activation_bytes", part, some) + side_bytes for part in of_rank])
        transient = np.max([of.largest("transient_bytes", part, some) for part in of_rank], axis=0)
        on_host = sum(of.total("host_static_bytes", part, some) for part in of_rank)
        on_host = on_host + _most_held(held, [of.total("host_activation_bytes", part, some) for part in of_rank])
        on_drives = sum(of.total("nvme_bytes", part, some) for part in of_rank)
        fits = fits & (static + kept + transient <= table.one.capacity_bytes)
        fits = fits & (on_host <= table.one.parts.host_capacity_bytes) & (on_drives <= table.one.parts.nvme_capacity_bytes)
        tail_s = np.maximum(tail_s, extra_s) + waiting * way_s
        longest_s = np.maximum(longest_s, time_s)
    step_s = (candidate.n_microbatches - waiting) * longest_s + tail_s
    return np.asarray(np.where(fits, step_s, math.inf).min(axis=1), np.float64)


class _Sums:
    """Sums over the layers of each part of each split: [split, combination]."""

    def __init__(self, table: Table, splits: _Splits):
        self.table, self.splits = table, splits
        self._known: dict[tuple[str, str], Floats] = {}

    def total(self, name: str, part: int, some: slice) -> Floats:
        """Sum of a field over a part's layers, of some of the splits."""
        return self._of(name, part, some, "sum")

    def largest(self, name: str, part: int, some: slice) -> Floats:
        """Largest of a field over a part's layers, of some of the splits."""
        return self._of(name, part, some, "max")

    def _of(self, name: str, part: int, some: slice, how: str) -> Floats:
        if (name, how) not in self._known:
            rows = self.table.fields[self.table.row(name)]
            made = [_under_modes(rows, layers, kept_from) for layers, kept_from in self.splits.parts]
            self._known[name, how] = np.array([getattr(each, how)(axis=1) for each in made])
        mode = self.splits.modes[some, part] if name in BY_MODE else 0
        return np.asarray(self._known[name, how][self.splits.number[some, part], mode])


def _under_modes(rows: Floats, layers: tuple[int, ...], kept_from: int | None) -> Floats:
    """[mode, layer, combination] of a part: where only some of its layers are recomputed, in both modes what they take."""
    mine: Floats = rows[:, list(layers)]
    if kept_from is None or len(mine) == 1:
        return mine
    none, full = mine
    mixed = np.where((np.array(layers) < kept_from)[:, None], full, none)
    return np.array([mixed, mixed])


def _most_held(held: Ints, kept: list[Floats]) -> Floats:
    """The most bytes at a moment [split, combination]; ``held`` [moment, part] are passes whose bytes are there at once."""
    return np.max([sum(n * each for n, each in zip(moment, kept, strict=True)) for moment in held], axis=0)
