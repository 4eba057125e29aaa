"""The exact pass of `solver.stages.tables`: labels of suffixes that know how many stages they have.

A label of blocks k.. says: so many devices, so many stages, the sum of their times, and their tail. The number of stages
is what memory of earlier stages depends on. Labels are kept per block and devices while no other is at least as good in
every respect, and only while the best prefix known could still complete them to less than the cutoff.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.compiling import kept_compiled
from meshwright.solver.stages.table_kernels import Candidates

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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
