"""Costs of stages under every sharding at once: a block's columns of a stage's table depend on its own strategies alone.

So the columns of every choice of strategies of every block are made once and combined; nothing is left out but choices whose
columns are the same to the last bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import StageKind, StageTable
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.schedules import PLAIN
from tests.unit.solver.training.every_plan import every_candidate

Floats = npt.NDArray[np.float64]

BY_MODE = ("time_s", "activation_bytes", "transient_bytes", "host_activation_bytes")
_BY_LAYER = ("static_bytes", "extra_s", "host_static_bytes", "nvme_bytes", "first_bucket_s")


@dataclass(frozen=True)
class Table:
    """Costs of one stage position under every combination of shardings: ``fields`` [row, layer, combination]."""

    fields: Floats
    one: StageTable
    n_modes: int

    def row(self, name: str) -> slice:
        """Rows of a field: one for each recompute mode, or one."""
        if name in BY_MODE:
            first = BY_MODE.index(name) * self.n_modes
            return slice(first, first + self.n_modes)
        first = len(BY_MODE) * self.n_modes + _BY_LAYER.index(name)
        return slice(first, first + 1)

    @property
    def step_s(self) -> Floats:
        """The seconds that a step adds once to a stage after the first, by combination."""
        layers = slice(1, -1) if self.fields.shape[1] > 2 else slice(None)
        buckets = self.one.parts.first_bucket_s[layers]
        fill_s = self.one.step_s - float(buckets.max())
        return np.asarray(self.fields[self.row("first_bucket_s")][0, layers].max(axis=0) + fill_s)


def alike(request: TrainingRequest) -> list[list[Candidate]]:
    """Every candidate of the request, those together that differ in schedule alone."""
    found: dict[Candidate, list[Candidate]] = {}
    for candidate in every_candidate(request):
        plain = replace(PLAIN, slices=candidate.pipelining.slices)
        found.setdefault(replace(candidate, pipelining=plain), []).append(candidate)
    return list(found.values())


def n_choices(costs: TrainingCosts, candidate: Candidate) -> int:
    """Return the number of combinations of strategies of all operators; 0 where an operator has none."""
    setting = costs.settings(candidate, costs.stage_kinds(candidate)[0])[0]
    problems = [costs.problem(block, setting) for block in costs.block_names]
    return math.prod(0 if problem is None else math.prod(map(len, problem.strategies)) for problem in problems)


class Columns:
    """Columns of every choice of each block, for candidates that differ in schedule alone; at least one of each block."""

    def __init__(self, costs: TrainingCosts, candidates: Sequence[Candidate]):
        self.kinds, self.layer_block = costs.stage_kinds(candidates[0]), costs.layer_block
        self.n_modes = [len(candidate.recompute) for candidate in candidates]
        self.distinct = list({id(kind): kind for kind in self.kinds}.values())
        self.ones: list[list[StageTable]] = [[] for _ in candidates]
        # [block][candidate][kind]: fields [choice, row, layers of the block], of distinct choices
        self.of_block: list[list[list[Floats]]] = []
        choices = list(_choices(costs, candidates[0], self.kinds[0]))
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

    def tables(self, number: int) -> list[Table]:
        """Tables of the stage positions of one of the candidates."""
        made = {}
        for k, kind in enumerate(self.distinct):
            rows = self.of_block[0][number][k].shape[1]
            fields = np.empty((rows, len(self.layer_block), self.n_combined))
            for place, of_candidate in enumerate(self.of_block):
                layers = np.flatnonzero(self.layer_block == place)
                fields[:, layers] = of_candidate[number][k][self.picked[place]].transpose(1, 2, 0)
            made[id(kind)] = Table(fields, self.ones[number][k], self.n_modes[number])
        return [made[id(kind)] for kind in self.kinds]


def _choices(costs: TrainingCosts, candidate: Candidate, kind: StageKind) -> Iterator[list[tuple[int, ...]]]:
    """For each distinct block every choice of strategies of its operators."""
    setting = costs.settings(candidate, kind)[0]
    for block in costs.block_names:
        problem = costs.problem(block, setting)
        assert problem is not None
        yield list(itertools.product(*(range(len(options)) for options in problem.strategies)))


def _fields(table: StageTable) -> Floats:
    """[row, layer]: what of a table belongs to layers."""
    parts = table.parts
    by_mode = (table.time_s, table.activation_bytes, table.transient_bytes, parts.host_activation_bytes)
    by_layer = (table.static_bytes, table.extra_s, parts.host_static_bytes, parts.nvme_bytes, parts.first_bucket_s)
    return np.vstack([*by_mode, *by_layer])
