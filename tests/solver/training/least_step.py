"""The least step time among all plans of a small request: every one is costed, shardings and splits in arrays.

A stage's table has a column for each layer, and what a block takes in a column depends on its own strategies alone. So the
columns of every choice of strategies of every block are computed once, and combined; nothing is left out but choices whose
columns are the same to the last bit. `tests.solver.training.test_exhaustive` compares with `every_plan`, plan by plan.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from solver.request import GroupOrder, PlanRequest
from solver.sharding import REPLICATED
from solver.training.costs import TrainingCosts
from solver.training.evaluate import StageSpan, held_by_part, positions
from solver.training.pipelining import PLAIN
from solver.training.space import Candidate, Mesh
from solver.training.stage_table import StageKind, StageTable
from tests.solver.training.every_plan import every_candidate, every_split

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_PLANS_AT_ONCE = 400_000
"""Plans costed in one array, for memory's sake."""

_BY_MODE = ("time_s", "activation_bytes", "transient_bytes", "host_activation_bytes")
_BY_LAYER = ("static_bytes", "extra_s", "host_static_bytes", "first_bucket_s")


@dataclass
class Enumerated:
    """The least step time of all plans that fit, None where none does, and how many plans there are."""

    least_s: float | None = None
    n_plans: int = 0


def enumerated(request: PlanRequest) -> Enumerated:
    """The least of every plan of the request's space, in every order of the node groups where it leaves that open."""
    groups, found = request.cluster.groups, Enumerated()
    for order in itertools.permutations(groups) if request.search.group_order is GroupOrder.ANY else [groups]:
        _enumerate(replace(request, cluster=replace(request.cluster, groups=order)), found)
    return found


def _enumerate(request: PlanRequest, found: Enumerated) -> None:
    """Cost every plan of one order of the node groups."""
    costs = TrainingCosts(request)
    alike: dict[Candidate, list[Candidate]] = {}
    for candidate in every_candidate(request):
        plain = replace(PLAIN, slices=candidate.pipelining.slices)
        alike.setdefault(replace(candidate, pipelining=plain), []).append(candidate)
    for candidates in alike.values():
        kinds = costs.stage_kinds(candidates[0])
        choices = _choices(costs, candidates[0], kinds)
        if choices is None:
            continue
        columns = _Columns(costs, candidates, kinds, choices)
        for number, candidate in enumerate(candidates):
            first, last, modes = _splits(len(request.model.layers), candidate)
            found.n_plans += len(first) * math.prod(len(each) for each in choices)
            tables = columns.tables(number)
            for start in range(0, len(first), step := max(1, _PLANS_AT_ONCE // columns.n_combined)):
                part = slice(start, start + step)
                least = _least_s(candidate, tables, first[part], last[part], modes[part])
                if least < (math.inf if found.least_s is None else found.least_s):
                    found.least_s = least


def _choices(costs: TrainingCosts, candidate: Candidate, kinds: Sequence[StageKind]) -> list[list[tuple[int, ...]]] | None:
    """For each distinct block every choice of strategies of its operators; None where an operator has none."""
    setting = costs.settings(candidate, kinds[0])[0]
    problems = [costs.problem(block, setting) for block in costs.block_names]
    if any(problem is None for problem in problems):
        return None
    return [
        list(itertools.product(*(range(len(options)) for options in problem.strategies))) for problem in problems if problem
    ]


@dataclass(frozen=True)
class _Table:
    """Costs of one stage position under every combination of shardings: ``fields`` [row, layer, combination]."""

    fields: Floats
    one: StageTable
    n_modes: int

    def row(self, name: str) -> slice:
        """Rows of a field: one for each recompute mode, or one."""
        if name in _BY_MODE:
            first = _BY_MODE.index(name) * self.n_modes
            return slice(first, first + self.n_modes)
        first = len(_BY_MODE) * self.n_modes + _BY_LAYER.index(name)
        return slice(first, first + 1)


class _Columns:
    """Columns of every choice of each block, for candidates that differ in schedule alone."""

    def __init__(
        self,
        costs: TrainingCosts,
        candidates: Sequence[Candidate],
        kinds: Sequence[StageKind],
        choices: list[list[tuple[int, ...]]],
    ):
        self.kinds, self.layer_block = kinds, costs.layer_block
        self.n_modes = [len(candidate.recompute) for candidate in candidates]
        self.distinct = list({id(kind): kind for kind in kinds}.values())
        self.ones: list[list[StageTable]] = [[] for _ in candidates]
        # [block][candidate][kind]: fields [choice, row, layers of the block], of distinct choices
        self.of_block: list[list[list[Floats]]] = []
        rest = tuple(each[0] for each in choices)
        for place, mine in enumerate(choices):
            layers = np.flatnonzero(self.layer_block == place)
            columns: list[list[list[Floats]]] = [[[] for _ in self.distinct] for _ in candidates]
            for choice in mine:
                sharding = (*rest[:place], choice, *rest[place + 1 :])
                for (c, candidate), (k, kind) in itertools.product(enumerate(candidates), enumerate(self.distinct)):
                    table = costs.table(candidate, kind, sharding)
                    columns[c][k].append(_fields(table)[:, layers])
                    if place == 0 and choice == mine[0]:
                        self.ones[c].append(table)
            stacked = [[np.array(of_kind) for of_kind in of_candidate] for of_candidate in columns]
            flat = np.hstack([each.reshape(len(mine), -1) for each in itertools.chain.from_iterable(stacked)])
            _, kept = np.unique(flat, axis=0, return_index=True)
            self.of_block.append([[each[kept] for each in of_candidate] for of_candidate in stacked])
        sizes = [len(each[0][0]) for each in self.of_block]
        self.n_combined = math.prod(sizes)
        self.picked = [grid.ravel() for grid in np.meshgrid(*(np.arange(size) for size in sizes), indexing="ij")]

    def tables(self, number: int) -> list[_Table]:
        """Tables of the stage positions of one of the candidates."""
        made = {}
        for k, kind in enumerate(self.distinct):
            rows = self.of_block[0][number][k].shape[1]
            fields = np.empty((rows, len(self.layer_block), self.n_combined))
            for place, of_candidate in enumerate(self.of_block):
                layers = np.flatnonzero(self.layer_block == place)
                fields[:, layers] = of_candidate[number][k][self.picked[place]].transpose(1, 2, 0)
            made[id(kind)] = _Table(fields, self.ones[number][k], self.n_modes[number])
        return [made[id(kind)] for kind in self.kinds]


def _fields(table: StageTable) -> Floats:
    """[row, layer]: what of a table belongs to layers."""
    parts = table.parts
    by_mode = (table.time_s, table.activation_bytes, table.transient_bytes, parts.host_activation_bytes)
    by_layer = (table.static_bytes, table.extra_s, parts.host_static_bytes, parts.first_bucket_s)
    return np.vstack([*by_mode, *by_layer])


def _splits(n_layers: int, candidate: Candidate) -> tuple[Ints, Ints, Ints]:
    """First and last layer, and number of the recompute mode, of each part [split, part]."""
    mesh = Mesh(dp=1, tp=1, pp=candidate.mesh.pp, cp=1)
    splits = _split_spans(n_layers, Candidate(mesh, 1, 1, 0, REPLICATED, candidate.recompute, candidate.pipelining))
    modes = [[candidate.recompute.index(span.recompute) for span in spans] for spans in splits]
    first, last = ([[getattr(span, end) for span in spans] for spans in splits] for end in ("first", "last"))
    shape = (len(splits), len(splits[0]) if splits else 0)
    return tuple(np.array(each, np.int64).reshape(shape) for each in (first, last, modes))  # type: ignore[return-value]


@lru_cache(maxsize=256)
def _split_spans(n_layers: int, candidate: Candidate) -> tuple[tuple[StageSpan, ...], ...]:
    return tuple(every_split(n_layers, candidate))


def _least_s(candidate: Candidate, tables: list[_Table], first: Ints, last: Ints, modes: Ints) -> float:
    """The least step time of the splits under all shardings that fit; infinite where none does."""
    if not len(first):
        return math.inf
    tail_s: Floats | float = 0.0
    longest_s: Floats | float = 0.0
    fits: npt.NDArray[np.bool_] | bool = True
    waiting = tables[0].one.waiting
    ranks = zip(positions(candidate), tables, held_by_part(candidate), strict=True)
    n_copies = sum(len(of_rank) for of_rank in positions(candidate)) // first.shape[1]
    sums = {id(table): _Sums(table, first, last, modes) for table in tables}
    for rank, (of_rank, table, held) in enumerate(ranks):
        of = sums[id(table)]
        time_s = sum(of.total("time_s", part) for part in of_rank) / n_copies + table.one.boundary_s
        way_s, time_s = time_s + table.one.beside_s, np.maximum(time_s, table.one.beside_s)
        extra_s = sum(of.total("extra_s", part) for part in of_rank) + (_step_s(table) if rank else 0.0)
        static = sum(of.total("static_bytes", part) for part in of_rank)
        kept = _most_held(held, [of.total("activation_bytes", part) for part in of_rank])
        transient = np.max([of.largest("transient_bytes", part) for part in of_rank], axis=0)
        on_host = sum(of.total("host_static_bytes", part) for part in of_rank)
        on_host = on_host + _most_held(held, [of.total("host_activation_bytes", part) for part in of_rank])
        fits = fits & (static + kept + transient <= table.one.capacity_bytes)
        fits = fits & (on_host <= table.one.parts.host_capacity_bytes)
        tail_s = np.maximum(tail_s, extra_s) + waiting * way_s
        longest_s = np.maximum(longest_s, time_s)
    step_s = (candidate.n_microbatches - waiting) * longest_s + tail_s
    return float(np.min(np.where(fits, step_s, math.inf)))


class _Sums:
    """Sums over the layers of each part of each split: [split, combination]."""

    def __init__(self, table: _Table, first: Ints, last: Ints, modes: Ints):
        self.table, self.modes = table, modes
        spans, number = np.unique(np.stack([first.ravel(), last.ravel()]), axis=1, return_inverse=True)
        self.spans = spans.T
        self.number = number.reshape(first.shape)
        self._known: dict[tuple[str, str], Floats] = {}

    def total(self, name: str, part: int) -> Floats:
        """Sum of a field over a part's layers."""
        return self._of(name, part, "sum")

    def largest(self, name: str, part: int) -> Floats:
        """Largest of a field over a part's layers."""
        return self._of(name, part, "max")

    def _of(self, name: str, part: int, how: str) -> Floats:
        if (name, how) not in self._known:
            rows = self.table.fields[self.table.row(name)]
            self._known[name, how] = np.array(
                [getattr(rows[:, start : end + 1], how)(axis=1) for start, end in self.spans.tolist()]
            )
        mode = self.modes[:, part] if name in _BY_MODE else 0
        return np.asarray(self._known[name, how][self.number[:, part], mode])


def _most_held(held: Ints, kept: list[Floats]) -> Floats:
    """The most bytes at a moment [split, combination]; ``held`` [moment, part] are passes whose bytes are there at once."""
    return np.max([sum(n * each for n, each in zip(moment, kept, strict=True)) for moment in held], axis=0)


def _step_s(table: _Table) -> Floats:
    """What a step adds once to a stage after the first, by combination."""
    layers = slice(1, -1) if table.fields.shape[1] > 2 else slice(None)
    buckets = table.one.parts.first_bucket_s[layers]
    fill_s = table.one.step_s - float(buckets.max())
    return np.asarray(table.fields[table.row("first_bucket_s")][0, layers].max(axis=0) + fill_s)
