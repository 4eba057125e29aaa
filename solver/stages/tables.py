"""Partitions a chain of blocks into stages on submeshes, from dense tables of what each possible stage costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.costmodels.compiling import kept_compiled
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.stages.longest import Best, FoundPartition, SolveWithin, least_objective
from meshwright.solver.stages.pinned import Pinned, reach

# Compiled inner loops of `solver.stages.tables`: all arrays, no validation.
#
# A *candidate* is one way to run blocks ``first..last``: so many devices, behind at least and at most so many of earlier
# stages,
# a time, an extra, and the number of later stages its memory allows. Candidates are sorted by (first, last, devices, place,
# time); those of one segment lie between two starts.

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Candidates(NamedTuple):
    """``start[first, last] : start[first, last] + length[first, last]`` are the candidates of a segment, in parallel arrays.

    ``kind`` is the same for as many devices in the same place: behind ``lowest`` to ``highest`` devices of earlier stages.
    """

    start: Ints
    length: Ints
    devices: Ints
    kind: Ints
    lowest: Ints
    highest: Ints
    time: Floats
    extra: Floats
    later: Ints
    submesh: Ints
    config: Ints


@kept_compiled
def has_bad_figure(times: Floats, extra: Floats, row: Ints) -> bool:
    """Return True if a possible stage (on or above the diagonal, not infinite) has a negative or undefined time or extra."""
    _, n_submeshes, n_configs = times.shape
    for first in range(len(row)):
        for last in range(first, len(row)):
            for s in range(n_submeshes):
                for c in range(n_configs):
                    t = times[row[first, last], s, c]
                    if not t >= 0.0:
                        return True
                    if extra.size > 0 and t < np.inf and not 0.0 <= extra[row[first, last], s, c] < np.inf:
                        return True
    return False


@kept_compiled
def list_candidates(
    times: Floats,
    max_in_flight: Ints,
    extra: Floats,
    submesh_devices: Ints,
    devices_before: Ints,
    submesh_kind: Ints,
    submesh_order: Ints,
    row: Ints,
) -> Candidates:
    """Every candidate that no other beats: of as many devices in the same place, no slower, no more extra, no more memory.

    ``devices_before[submesh]`` holds the fewest and the most devices of earlier stages. ``submesh_order`` lists submeshes by
    devices and place, those of one ``submesh_kind`` together; an empty ``extra`` stands for zeros.
    """
    _, n_submeshes, n_configs = times.shape
    n_blocks = len(row)
    segments = n_blocks * (n_blocks + 1) // 2
    start = np.zeros((n_blocks, n_blocks), np.int64)
    length = np.zeros((n_blocks, n_blocks), np.int64)
    size = segments * n_submeshes * n_configs
    later = np.empty(size, np.int64)
    submesh, config = np.empty(size, np.int64), np.empty(size, np.int64)
    time, spare = np.empty(size), np.empty(size)
    has_extra = extra.size > 0
    end = 0
    for first in range(n_blocks):
        for last in range(first, n_blocks):
            start[first, last] = end
            group = end
            for s in submesh_order:
                if devices_before[s, 0] > devices_before[s, 1]:
                    continue
                if end > group and submesh_kind[submesh[group]] != submesh_kind[s]:
                    group = end
                for c in range(n_configs):
                    t = times[row[first, last], s, c]
                    q = min(max_in_flight[row[first, last], s, c], n_blocks - 1 - last)
                    if t == np.inf or q < min(1, n_blocks - 1 - last):
                        continue
                    d = extra[row[first, last], s, c] if has_extra else 0.0
                    beaten = False
                    for e in range(group, end):
                        if time[e] <= t and spare[e] <= d and later[e] >= q:
                            beaten = True
                            break
                    if beaten:
                        continue
                    kept = group
                    for e in range(group, end):
                        if not (t <= time[e] and d <= spare[e] and q >= later[e]):
                            time[kept], spare[kept], later[kept] = time[e], spare[e], later[e]
                            submesh[kept], config[kept] = submesh[e], config[e]
                            kept += 1
                    end = kept
                    while kept > group and (time[kept - 1] > t or (time[kept - 1] == t and spare[kept - 1] > d)):
                        time[kept], spare[kept], later[kept] = time[kept - 1], spare[kept - 1], later[kept - 1]
                        submesh[kept], config[kept] = submesh[kept - 1], config[kept - 1]
                        kept -= 1
                    time[kept], spare[kept], later[kept] = t, d, q
                    submesh[kept], config[kept] = s, c
                    end += 1
            length[first, last] = end - start[first, last]
    chosen = submesh[:end]
    return Candidates(
        start,
        length,
        submesh_devices[chosen],
        submesh_kind[chosen],
        devices_before[:, 0][chosen],
        devices_before[:, 1][chosen],
        time[:end].copy(),
        spare[:end].copy(),
        later[:end].copy(),
        chosen.copy(),
        config[:end].copy(),
    )


@kept_compiled
def fewest_stages(candidates: Candidates, limit: float) -> Ints:
    """``fewest[k]``: no partition of blocks k.. without a stage longer than ``limit`` has fewer stages; 2**30: none exists."""
    n_blocks = candidates.start.shape[0]
    fewest = np.full(n_blocks + 1, 2**30, np.int64)
    fewest[n_blocks] = 0
    for first in range(n_blocks - 1, -1, -1):
        for last in range(n_blocks - 1, first - 1, -1):
            after = fewest[last + 1]
            if after + 1 >= fewest[first]:
                continue
            begin = candidates.start[first, last]
            for e in range(begin, begin + candidates.length[first, last]):
                if candidates.time[e] <= limit and candidates.later[e] >= after:
                    fewest[first] = after + 1
                    break
    return fewest


@kept_compiled
def least_prefix_tails(candidates: Candidates, fewest: Ints, limit: float, n_devices: int) -> Floats:
    """``tails[k, D]``: least tail of blocks ..k-1 on exactly D devices, memory checked against ``fewest`` later stages only.

    Hence a lower bound. Adding a stage behind a prefix of tail w makes it ``time + max(w, extra)``, so one number a
    state is enough, and a row of states is one vector operation.
    """
    n_blocks = candidates.start.shape[0]
    tails = np.full((n_blocks + 1, n_devices + 1), np.inf)
    tails[0, 0] = 0.0
    for first in range(n_blocks):
        low, high = finite_range(tails[first], np.inf)
        if low > high:
            continue
        for last in range(first, n_blocks):
            begin = candidates.start[first, last]
            used_kind, used_extra = -1, np.inf
            for e in range(begin, begin + candidates.length[first, last]):
                time, extra, devices = candidates.time[e], candidates.extra[e], candidates.devices[e]
                if time > limit or candidates.later[e] < fewest[last + 1]:
                    continue
                if candidates.kind[e] == used_kind and extra >= used_extra:
                    continue
                used_kind, used_extra = candidates.kind[e], extra
                start, stop = max(low, candidates.lowest[e]), min(high, candidates.highest[e]) + 1
                if stop <= start:
                    continue
                row = tails[first, start:stop]
                into = tails[last + 1, start + devices : stop + devices]
                for x in range(row.shape[0]):
                    into[x] = min(into[x], time + max(row[x], extra))
    return tails


@kept_compiled
def walk_back(candidates: Candidates, fewest: Ints, tails: Floats, limit: float) -> Ints:
    """The candidates, from first stage to last, of a prefix chain that `least_prefix_tails` found for everything."""
    n_blocks, n_devices = tails.shape[0] - 1, tails.shape[1] - 1
    chain = np.empty(n_blocks, np.int64)
    length = 0
    end, used = n_blocks, n_devices
    while end > 0:
        found = False
        for first in range(end):
            begin = candidates.start[first, end - 1]
            for e in range(begin, begin + candidates.length[first, end - 1]):
                before = used - candidates.devices[e]
                if before < candidates.lowest[e] or before > candidates.highest[e]:
                    continue
                if candidates.time[e] > limit or candidates.later[e] < fewest[end]:
                    continue
                if candidates.time[e] + max(tails[first, before], candidates.extra[e]) == tails[end, used]:
                    chain[length] = e
                    length += 1
                    end, used, found = first, before, True
                    break
            if found:
                break
        if not found:
            # Not an assert: pytest rewrites those in packages with a plugin, and numba can't compile what it writes.
            raise AssertionError("a finite tail has no candidate that made it")
    return chain[:length][::-1].copy()


@kept_compiled
def finite_range(row: Floats, below: float) -> tuple[int, int]:
    """First and last place of a row that holds less than ``below``."""
    low, high = 0, row.shape[0] - 1
    while low <= high and row[low] >= below:
        low += 1
    while high >= low and row[high] >= below:
        high -= 1
    return low, high


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
    row_of: ArrayLike | None = None,
    below_s: float = math.inf,
    pinned: Sequence[Pinned] = (),
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
    row_of           [first, last] integers: the row of tables [row, submesh, config], where runs of blocks that cost the same
                     share one; default: tables of all runs
    below_s          partitions that take as long or longer are of no interest
    pinned           blocks that lie on a stage that is named

    The objective is `solver.stages.longest.objective_s`; without extras it is Alpa's ``sum t + (m - 1) max t`` (OSDI'22,
    equation 2). Solved exactly up to the rounding of float sums; ``bound_s`` equals the objective. Of equal partitions, the
    first in a fixed order of search: nothing depends on the machine.

    Raises InvalidInputError when shapes disagree or a figure is negative or not a number.
    """
    times, later, extra, devices, row = _checked(times_s, max_in_flight, extra_s, submesh_devices, row_of)
    if n_devices < 1 or n_microbatches < 1:
        raise InvalidInputError(
            "bad number of devices or micro-batches", given=(n_devices, n_microbatches), allowed="1 or more of each"
        )
    before = _places(devices_before, devices, n_devices)
    _, kind = np.unique(np.column_stack([devices, before]), axis=0, return_inverse=True)
    order = np.argsort(kind, kind="stable")
    candidates = list_candidates(times, later, extra, devices, before, kind.reshape(-1), order, row)
    search = _PartitionSearch(candidates, n_devices, n_microbatches, below_s, tuple(pinned))
    counts = _counts_worth_trying(stage_counts, len(row))
    # Which stage a run of blocks is on is known where their number is.
    if not pinned and counts == list(range(1, len(counts) + 1)):
        search.try_at_most(len(counts))
    else:
        for n_stages in counts:
            search.try_exactly(n_stages)
    if search.best is None:
        return None
    objective_s = search.best.objective_s
    return Partition(_stages(candidates, search.best.choice), objective_s, objective_s, search.work)


class _PartitionSearch:
    """One search: the best partition so far over the numbers of stages tried, and the work it took."""

    def __init__(self, candidates: Candidates, n_devices: int, n_microbatches: int, below_s: float, pinned: Sequence[Pinned]):
        self._pinned = pinned
        self._below_s = below_s
        self.best: Best[Ints] | None = None
        self.work = Work(0, 0, 0)
        self._candidates = candidates
        self._n_devices = n_devices
        self._n_microbatches = n_microbatches

    def try_at_most(self, n_stages: int) -> None:
        """Looks for a better partition of 1 to ``n_stages`` stages."""

        def solve_within(limit_s: float, below_s: float) -> FoundPartition[Ints] | None:
            fewest = fewest_stages(self._candidates, limit_s)
            if fewest[0] > n_stages:
                return None
            tails = least_prefix_tails(self._candidates, fewest, limit_s, self._n_devices)
            bound_s = float(tails[-1, -1])
            if bound_s >= below_s:
                return None
            chain = walk_back(self._candidates, fewest, tails, limit_s)
            if len(chain) <= n_stages and (self._candidates.later[chain] >= np.arange(len(chain) - 1, -1, -1)).all():
                return self._found(bound_s, chain)
            return self._exact_pass(tails, limit_s, below_s, n_stages)

        self._improve(solve_within)

    def _exact_pass(self, prefix_tails: Floats, limit_s: float, below_s: float, n_stages: int) -> FoundPartition[Ints] | None:
        bound_s = float(prefix_tails[-1, -1])
        cutoffs_s = [min(below_s, factor * bound_s) for factor in _WIDENING]
        for cutoff_s in (*cutoffs_s, below_s):
            tail_s, chain, labels = least_tail(self._candidates, prefix_tails, limit_s, cutoff_s, n_stages)
            self._count(exact_passes=1, labels=labels)
            if tail_s < cutoff_s:
                return self._found(tail_s, chain)
            if cutoff_s == below_s:
                break
        return None

    def try_exactly(self, n_stages: int) -> None:
        """Looks for a better partition of ``n_stages`` stages."""
        ends = reach(self._pinned, n_stages, self._candidates.start.shape[0])

        def solve_within(limit_s: float, below_s: float) -> FoundPartition[Ints] | None:
            if fewest_stages(self._candidates, limit_s)[0] > n_stages:
                return None
            tails = least_tails_of_exactly(self._candidates, ends, limit_s, below_s, self._n_devices)
            self._count(exact_passes=1)
            tail_s = float(tails[-1, -1, -1])
            if not tail_s < below_s:
                return None
            return self._found(tail_s, walk_back_exactly(self._candidates, ends, tails, limit_s))

        self._improve(solve_within)

    def _found(self, tail_s: float, chain: Ints) -> FoundPartition[Ints]:
        return FoundPartition(float(self._candidates.time[chain].max()), tail_s, chain)

    def _improve(self, solve_within: SolveWithin[Ints]) -> None:
        def counted(limit_s: float, below_s: float) -> FoundPartition[Ints] | None:
            self._count(limits_tried=1)
            return solve_within(limit_s, below_s)

        below_s = self._below_s if self.best is None else self.best.objective_s
        self.best = least_objective(counted, self._n_microbatches, below_s=below_s) or self.best

    def _count(self, limits_tried: int = 0, exact_passes: int = 0, labels: int = 0) -> None:
        self.work = Work(
            self.work.limits_tried + limits_tried, self.work.exact_passes + exact_passes, self.work.labels + labels
        )


def _checked(
    times_s: ArrayLike,
    max_in_flight: ArrayLike,
    extra_s: ArrayLike | None,
    submesh_devices: ArrayLike,
    row_of: ArrayLike | None,
) -> tuple[Floats, Ints, Floats, Ints, Ints]:
    """The tables [row, submesh, config], and the row of each run of blocks."""
    times = np.ascontiguousarray(times_s, np.float64)
    if times.ndim != (4 if row_of is None else 3) or 0 in times.shape or (row_of is None and times.shape[0] != times.shape[1]):
        raise InvalidInputError(
            "bad shape of times_s",
            given=times.shape,
            allowed="[first, last, submesh, config], as many first as last; or [row, submesh, config] with row_of",
        )
    later = np.ascontiguousarray(max_in_flight)
    if later.shape != times.shape or not np.issubdtype(later.dtype, np.integer):
        raise InvalidInputError(
            "bad max_in_flight", given=(later.shape, str(later.dtype)), allowed=f"integers of shape {times.shape}"
        )
    extra = np.zeros((0, 0, 0)) if extra_s is None else np.ascontiguousarray(extra_s, np.float64)
    if extra_s is not None and extra.shape != times.shape:
        raise InvalidInputError("bad shape of extra_s", given=extra.shape, allowed=str(times.shape))
    n_submeshes = times.shape[-2]
    devices = np.ascontiguousarray(submesh_devices)
    if devices.shape != (n_submeshes,) or not np.issubdtype(devices.dtype, np.integer) or (devices < 1).any():
        raise InvalidInputError("bad submesh_devices", given=submesh_devices, allowed=f"{n_submeshes} integers of 1 or more")
    each = np.arange(math.prod(times.shape[:-2])).reshape(times.shape[:-2])
    row = each if row_of is None else np.ascontiguousarray(row_of)
    if row.ndim != 2 or row.shape[0] != row.shape[1] or not np.isin(row, each).all():
        raise InvalidInputError("bad row_of", given=row.shape, allowed=f"[first, last] rows of {each.size}")
    times, later, extra = (table.reshape(each.size if table.size else 0, *table.shape[-2:]) for table in (times, later, extra))
    if has_bad_figure(times, extra, row):
        raise InvalidInputError(
            "bad figure in times_s or extra_s",
            allowed="0 or more; times may be infinite, extras of possible stages may not",
        )
    return times, later.astype(np.int64, copy=False), extra, devices.astype(np.int64), row.astype(np.int64, copy=False)


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


# The pass of `solver.stages.tables` for a given number of stages: each knows how many follow, so no labels are needed.


@kept_compiled
def least_tails_of_exactly(candidates: Candidates, ends: Ints, limit: float, below: float, n_devices: int) -> Floats:
    """``tails[i, k, D]``: least tail of blocks ..k-1 as the first i stages on exactly D devices.

    No segment of stage i that begins at block k ends behind ``ends[i, k]``.

    Exact; infinite where there is none, or none less than ``below``. Each stage lengthens the tail, as in
    `solver.stages.tables.least_prefix_tails`.
    """
    n_stages, n_blocks = ends.shape
    tails = np.full((n_stages + 1, n_blocks + 1, n_devices + 1), np.inf)
    tails[0, 0, 0] = 0.0
    for i in range(n_stages):
        after = n_stages - 1 - i
        for first in range(i, n_blocks - after):
            low, high = finite_range(tails[i, first], below)
            if low > high:
                continue
            for last in range(first if after else n_blocks - 1, min(n_blocks - after, ends[i, first])):
                begin = candidates.start[first, last]
                used_kind, used_extra = -1, np.inf
                for e in range(begin, begin + candidates.length[first, last]):
                    time, extra, devices = candidates.time[e], candidates.extra[e], candidates.devices[e]
                    if time > limit or candidates.later[e] < after:
                        continue
                    if candidates.kind[e] == used_kind and extra >= used_extra:
                        continue
                    used_kind, used_extra = candidates.kind[e], extra
                    start, stop = max(low, candidates.lowest[e]), min(high, candidates.highest[e]) + 1
                    if stop <= start:
                        continue
                    row = tails[i, first, start:stop]
                    into = tails[i + 1, last + 1, start + devices : stop + devices]
                    for x in range(row.shape[0]):
                        into[x] = min(into[x], time + max(row[x], extra))
    return tails


@kept_compiled
def walk_back_exactly(candidates: Candidates, ends: Ints, tails: Floats, limit: float) -> Ints:
    """The candidates, from first stage to last, behind the tail that `least_tails_of_exactly` found for everything."""
    n_stages, end, used = tails.shape[0] - 1, tails.shape[1] - 1, tails.shape[2] - 1
    chain = np.empty(n_stages, np.int64)
    for i in range(n_stages - 1, -1, -1):
        found = False
        for first in range(end):
            if end > ends[i, first]:
                continue
            begin = candidates.start[first, end - 1]
            for e in range(begin, begin + candidates.length[first, end - 1]):
                before = used - candidates.devices[e]
                if before < candidates.lowest[e] or before > candidates.highest[e]:
                    continue
                if candidates.time[e] > limit or candidates.later[e] < n_stages - 1 - i:
                    continue
                if candidates.time[e] + max(tails[i, first, before], candidates.extra[e]) == tails[i + 1, end, used]:
                    chain[i] = e
                    end, used, found = first, before, True
                    break
            if found:
                break
        if not found:
            # Not an assert: pytest rewrites those in packages with a plugin, and numba can't compile what it writes.
            raise AssertionError("a finite tail has no candidate that made it")
    return chain


# The exact pass of `solver.stages.tables`: labels of suffixes that know how many stages they have.
#
# A label of blocks k.. says: so many devices, so many stages, the sum of their times, and their tail. The number of stages
# is what memory of earlier stages depends on. Labels are kept per block and devices while no other is at least as good in
# every respect, and only while the best prefix known could still complete them to less than the cutoff.


@kept_compiled
def least_tail(
    candidates: Candidates, prefix_tails: Floats, limit: float, below: float, most_stages: int
) -> tuple[float, Ints, int]:
    """Least tail below ``below`` of a partition without a stage longer than ``limit``, its candidates, and the labels made.

    ``prefix_tails`` bounds what comes before (`least_prefix_tails`). The tail is infinite when there is no such partition of
    at most ``most_stages`` stages.
    """
    n_blocks, n_devices = prefix_tails.shape[0] - 1, prefix_tails.shape[1] - 1

    room = 1024
    devices, stages = np.empty(room, np.int64), np.empty(room, np.int64)
    via, parent, chained = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    total, tail, rated = np.empty(room), np.empty(room), np.empty(room)
    devices[0], stages[0], via[0], parent[0], total[0], tail[0] = 0, 0, -1, -1, 0.0, 0.0
    row_start = np.zeros(n_blocks + 2, np.int64)
    row_stop = np.zeros(n_blocks + 2, np.int64)
    row_stop[n_blocks] = 1
    end = 1
    heads = np.empty(n_devices + 1, np.int64)
    made = 0

    for first in range(n_blocks - 1, -1, -1):
        begin = end
        heads[:] = -1
        for last in range(first, n_blocks):
            start = candidates.start[first, last]
            for e in range(start, start + candidates.length[first, last]):
                time, extra, added = candidates.time[e], candidates.extra[e], candidates.devices[e]
                if time > limit:
                    continue
                fewest, most = n_devices - candidates.highest[e], n_devices - candidates.lowest[e]
                for after in range(row_start[last + 1], row_stop[last + 1]):
                    d = devices[after] + added
                    q = stages[after]
                    if d < fewest or d > most or q > candidates.later[e] or q >= most_stages:
                        continue
                    new_total = total[after] + time
                    new_tail = max(tail[after], extra + new_total)
                    new_rated = max(new_tail, new_total + prefix_tails[first, n_devices - d])
                    if new_rated >= below:
                        continue
                    q += 1
                    beaten = False
                    before, other = -1, heads[d]
                    while other >= 0:
                        following = chained[other]
                        if stages[other] <= q and total[other] <= new_total and rated[other] <= new_rated:
                            beaten = True
                            break
                        if stages[other] >= q and total[other] >= new_total and rated[other] >= new_rated:
                            stages[other] = -1
                            if before < 0:
                                heads[d] = following
                            else:
                                chained[before] = following
                        else:
                            before = other
                        other = following
                    if beaten:
                        continue
                    if end == room:
                        room *= 2
                        devices, stages, via = _grown(devices), _grown(stages), _grown(via)
                        parent, chained = _grown(parent), _grown(chained)
                        total, tail, rated = _grown(total), _grown(tail), _grown(rated)
                    devices[end], stages[end], via[end], parent[end] = d, q, e, after
                    total[end], tail[end], rated[end] = new_total, new_tail, new_rated
                    chained[end] = heads[d]
                    heads[d] = end
                    end += 1
                    made += 1
        kept = begin
        for label in range(begin, end):
            if stages[label] >= 0:
                devices[kept], stages[kept], via[kept] = devices[label], stages[label], via[label]
                parent[kept], total[kept], tail[kept] = parent[label], total[label], tail[label]
                kept += 1
        end = kept
        row_start[first], row_stop[first] = begin, end

    best, best_label = np.inf, -1
    for label in range(row_start[0], row_stop[0]):
        if devices[label] == n_devices and tail[label] < best:
            best, best_label = tail[label], label
    chain = np.empty(n_blocks, np.int64)
    length = 0
    while best_label >= 0 and via[best_label] >= 0:
        chain[length] = via[best_label]
        length += 1
        best_label = parent[best_label]
    return best, chain[:length].copy(), made


@kept_compiled
def _grown(array):  # type: ignore[no-untyped-def]
    bigger = np.empty(2 * array.shape[0], array.dtype)
    bigger[: array.shape[0]] = array
    return bigger
