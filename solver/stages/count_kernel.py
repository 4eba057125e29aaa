"""The pass of `solver.stages.tables` for a given number of stages: each knows how many follow, so no labels are needed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.compiling import kept_compiled
from meshwright.solver.stages.table_kernels import Candidates, finite_range

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@kept_compiled
def least_tails_of_exactly(candidates: Candidates, limit: float, below: float, n_stages: int, n_devices: int) -> Floats:
    """``tails[i, k, D]``: least tail of blocks ..k-1 as the first i of ``n_stages`` stages on exactly D devices.

    Exact; infinite where there is none, or none less than ``below``. Each stage lengthens the tail, as in
    `solver.stages.table_kernels.least_prefix_tails`.
    """
    n_blocks = candidates.start.shape[0]
    tails = np.full((n_stages + 1, n_blocks + 1, n_devices + 1), np.inf)
    tails[0, 0, 0] = 0.0
    for i in range(n_stages):
        after = n_stages - 1 - i
        for first in range(i, n_blocks - after):
            low, high = finite_range(tails[i, first], below)
            if low > high:
                continue
            for last in range(first if after else n_blocks - 1, n_blocks - after):
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
def walk_back_exactly(candidates: Candidates, tails: Floats, limit: float) -> Ints:
    """The candidates, from first stage to last, behind the tail that `least_tails_of_exactly` found for everything."""
    n_stages, end, used = tails.shape[0] - 1, tails.shape[1] - 1, tails.shape[2] - 1
    chain = np.empty(n_stages, np.int64)
    for i in range(n_stages - 1, -1, -1):
        found = False
        for first in range(end):
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
