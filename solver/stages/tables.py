"""Partitions a chain of blocks into stages on submeshes, from dense tables of what each possible stage costs."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.stages import count_kernel, label_kernel, table_kernels
from meshwright.solver.stages.longest import Best, Found, SolveWithin, least_objective
from meshwright.solver.stages.table_kernels import Candidates

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_WIDENING = (1.02, 1.1)
"""Cutoffs that the exact pass tries first, as multiples of the bound: a tight one, when it holds, prunes nearly everything."""


@dataclass(frozen=True, slots=True)
class StageChoice:
    """A stage: blocks ``first`` to ``last`` (inclusive) on ``submesh`` under ``config``, its steady time and its extra."""

    first: int
    last: int
    submesh: int
    config: int
    time_s: float
    extra_s: float


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a search: limits on the longest stage tried, exact passes among them, labels those made."""

    limits_tried: int
    exact_passes: int
    labels: int


@dataclass(frozen=True, slots=True)
class Partition:
    """The best partition: its stages in order, the time of a step, and a proven lower bound on it."""

    stages: tuple[StageChoice, ...]
    objective_s: float
    bound_s: float
    work: Work


def partition(
    times_s: ArrayLike,
    max_in_flight: ArrayLike,
    *,
    submesh_devices: ArrayLike,
    n_devices: int,
    n_microbatches: int,
    extra_s: ArrayLike | None = None,
    stage_counts: Collection[int] | None = None,
    devices_before: ArrayLike | None = None,
    below_s: float = math.inf,
) -> Partition | None:
    """The partition into stages that takes least time a step and uses exactly ``n_devices``; None when there is none.

    times_s          [first, last, submesh, config] steady time of one micro-batch on blocks first..last (inclusive);
                     infinite where a stage is not possible; not read below the diagonal
    max_in_flight    same shape, integers: how many later stages memory allows; a stage with q stages after it is
                     possible only if ``q <= max_in_flight``; -1: never
    submesh_devices  [submesh] devices of each submesh
    extra_s          same shape: what the first and the last micro-batch add (optimizer, gradient reduction); default 0
    stage_counts     numbers of stages allowed; default any
    devices_before   [submesh, 2] integers: the fewest and the most devices that all earlier stages together may have, where
                     the submesh is a part of the cluster only; default any
    below_s          partitions that take as long or longer are of no interest

    The objective is `solver.stages.longest.objective_s`; without extras it is Alpa's ``sum t + (m - 1) max t`` (OSDI'22,
    equation 2). Solved exactly up to the rounding of float sums; ``bound_s`` equals the objective. Of equal partitions, the
    first in a fixed order of search: nothing depends on the machine.

    Raises InvalidInputError when shapes disagree or a figure is negative or not a number.
    """
    times, later, extra, devices = _checked(times_s, max_in_flight, extra_s, submesh_devices)
    if n_devices < 1 or n_microbatches < 1:
        raise InvalidInputError(
            "bad number of devices or micro-batches", given=(n_devices, n_microbatches), allowed="1 or more of each"
        )
    before = _places(devices_before, devices, n_devices)
    _, kind = np.unique(np.column_stack([devices, before]), axis=0, return_inverse=True)
    order = np.argsort(kind, kind="stable")
    candidates = table_kernels.list_candidates(times, later, extra, devices, before, kind.reshape(-1), order)
    search = _Search(candidates, n_devices, n_microbatches, below_s)
    counts = _counts_worth_trying(stage_counts, times.shape[0])
    if counts == list(range(1, len(counts) + 1)):
        search.try_at_most(len(counts))
    else:
        for n_stages in counts:
            search.try_exactly(n_stages)
    if search.best is None:
        return None
    objective_s = search.best.objective_s
    return Partition(_stages(candidates, search.best.choice), objective_s, objective_s, search.work)


class _Search:
    """One search: the best partition so far over the numbers of stages tried, and the work it took."""

    def __init__(self, candidates: Candidates, n_devices: int, n_microbatches: int, below_s: float):
        self._below_s = below_s
        self.best: Best[Ints] | None = None
        self.work = Work(0, 0, 0)
        self._candidates = candidates
        self._n_devices = n_devices
        self._n_microbatches = n_microbatches

    def try_at_most(self, n_stages: int) -> None:
        """Looks for a better partition of 1 to ``n_stages`` stages."""

        def solve_within(limit_s: float, below_s: float) -> Found[Ints] | None:
            fewest = table_kernels.fewest_stages(self._candidates, limit_s)
            if fewest[0] > n_stages:
                return None
            tails = table_kernels.least_prefix_tails(self._candidates, fewest, limit_s, self._n_devices)
            bound_s = float(tails[-1, -1])
            if bound_s >= below_s:
                return None
            chain = table_kernels.walk_back(self._candidates, fewest, tails, limit_s)
            if len(chain) <= n_stages and (self._candidates.later[chain] >= np.arange(len(chain) - 1, -1, -1)).all():
                return self._found(bound_s, chain)
            return self._exact_pass(tails, limit_s, below_s, n_stages)

        self._improve(solve_within)

    def _exact_pass(self, prefix_tails: Floats, limit_s: float, below_s: float, n_stages: int) -> Found[Ints] | None:
        bound_s = float(prefix_tails[-1, -1])
        cutoffs_s = [min(below_s, factor * bound_s) for factor in _WIDENING]
        for cutoff_s in (*cutoffs_s, below_s):
            tail_s, chain, labels = label_kernel.least_tail(self._candidates, prefix_tails, limit_s, cutoff_s, n_stages)
            self._count(exact_passes=1, labels=labels)
            if tail_s < cutoff_s:
                return self._found(tail_s, chain)
            if cutoff_s == below_s:
                break
        return None

    def try_exactly(self, n_stages: int) -> None:
        """Looks for a better partition of ``n_stages`` stages."""

        def solve_within(limit_s: float, below_s: float) -> Found[Ints] | None:
            if table_kernels.fewest_stages(self._candidates, limit_s)[0] > n_stages:
                return None
            tails = count_kernel.least_tails_of_exactly(self._candidates, limit_s, below_s, n_stages, self._n_devices)
            self._count(exact_passes=1)
            tail_s = float(tails[-1, -1, -1])
            if not tail_s < below_s:
                return None
            return self._found(tail_s, count_kernel.walk_back_exactly(self._candidates, tails, limit_s))

        self._improve(solve_within)

    def _found(self, tail_s: float, chain: Ints) -> Found[Ints]:
        return Found(float(self._candidates.time[chain].max()), tail_s, chain)

    def _improve(self, solve_within: SolveWithin[Ints]) -> None:
        def counted(limit_s: float, below_s: float) -> Found[Ints] | None:
            self._count(limits_tried=1)
            return solve_within(limit_s, below_s)

        below_s = self._below_s if self.best is None else self.best.objective_s
        self.best = least_objective(counted, self._n_microbatches, below_s=below_s) or self.best

    def _count(self, limits_tried: int = 0, exact_passes: int = 0, labels: int = 0) -> None:
        self.work = Work(
            self.work.limits_tried + limits_tried, self.work.exact_passes + exact_passes, self.work.labels + labels
        )


def _checked(
    times_s: ArrayLike, max_in_flight: ArrayLike, extra_s: ArrayLike | None, submesh_devices: ArrayLike
) -> tuple[Floats, Ints, Floats, Ints]:
    times = np.ascontiguousarray(times_s, np.float64)
    if times.ndim != 4 or 0 in times.shape or times.shape[0] != times.shape[1]:
        raise InvalidInputError(
            "bad shape of times_s", given=times.shape, allowed="[first, last, submesh, config], as many first as last"
        )
    later = np.ascontiguousarray(max_in_flight)
    if later.shape != times.shape or not np.issubdtype(later.dtype, np.integer):
        raise InvalidInputError(
            "bad max_in_flight", given=(later.shape, str(later.dtype)), allowed=f"integers of shape {times.shape}"
        )
    extra = np.zeros((0, 0, 0, 0)) if extra_s is None else np.ascontiguousarray(extra_s, np.float64)
    if extra_s is not None and extra.shape != times.shape:
        raise InvalidInputError("bad shape of extra_s", given=extra.shape, allowed=str(times.shape))
    devices = np.ascontiguousarray(submesh_devices)
    if devices.shape != times.shape[2:3] or not np.issubdtype(devices.dtype, np.integer) or (devices < 1).any():
        raise InvalidInputError("bad submesh_devices", given=submesh_devices, allowed=f"{times.shape[2]} integers of 1 or more")
    if table_kernels.has_bad_figure(times, extra):
        raise InvalidInputError(
            "bad figure in times_s or extra_s",
            allowed="0 or more; times may be infinite, extras of possible stages may not",
        )
    return times, later.astype(np.int64, copy=False), extra, devices.astype(np.int64)


def _places(devices_before: ArrayLike | None, devices: Ints, n_devices: int) -> Ints:
    """``[submesh, 2]``: the fewest and the most devices of earlier stages, at most what the submesh leaves."""
    most = n_devices - devices
    if devices_before is None:
        return np.stack([np.zeros_like(most), most], axis=1)
    before = np.ascontiguousarray(devices_before)
    if before.shape != (len(devices), 2) or not np.issubdtype(before.dtype, np.integer) or (before < 0).any():
        raise InvalidInputError(
            "bad devices_before", given=before.tolist(), allowed=f"{len(devices)} pairs of integers of 0 or more"
        )
    return np.stack([before[:, 0], np.minimum(before[:, 1], most)], axis=1).astype(np.int64)


def _counts_worth_trying(stage_counts: Collection[int] | None, n_blocks: int) -> list[int]:
    if stage_counts is None:
        return list(range(1, n_blocks + 1))
    if not stage_counts or min(stage_counts) < 1:
        raise InvalidInputError("bad stage_counts", given=stage_counts, allowed="at least one, each 1 or more")
    return sorted({n for n in stage_counts if n <= n_blocks})


def _stages(candidates: Candidates, chain: Ints) -> tuple[StageChoice, ...]:
    stages = []
    first = 0
    for e in chain.tolist():
        # segments are listed in order, so the last one that starts at or before e is the one that holds it
        last = first + int(np.searchsorted(candidates.start[first, first:], e, side="right")) - 1
        choice = StageChoice(
            first,
            last,
            int(candidates.submesh[e]),
            int(candidates.config[e]),
            float(candidates.time[e]),
            float(candidates.extra[e]),
        )
        stages.append(choice)
        first = last + 1
    return tuple(stages)
