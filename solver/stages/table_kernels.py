"""Compiled inner loops of `solver.stages.tables`: all arrays, no validation.

A *candidate* is one way to run blocks ``first..last``: so many devices, behind at least and at most so many of earlier stages,
a time, an extra, and the number of later stages its memory allows. Candidates are sorted by (first, last, devices, place,
time); those of one segment lie between two starts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.compiling import kept_compiled

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
def has_bad_figure(times: Floats, extra: Floats) -> bool:
    """Return True if a possible stage (on or above the diagonal, not infinite) has a negative or undefined time or extra."""
    n_blocks, _, n_submeshes, n_configs = times.shape
    for first in range(n_blocks):
        for last in range(first, n_blocks):
            for s in range(n_submeshes):
                for c in range(n_configs):
                    t = times[first, last, s, c]
                    if not t >= 0.0:
                        return True
                    if extra.size > 0 and t < np.inf and not 0.0 <= extra[first, last, s, c] < np.inf:
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
) -> Candidates:
    """Every candidate that no other beats: of as many devices in the same place, no slower, no more extra, no more memory.

    ``devices_before[submesh]`` holds the fewest and the most devices of earlier stages. ``submesh_order`` lists submeshes by
    devices and place, those of one ``submesh_kind`` together; an empty ``extra`` stands for zeros.
    """
    n_blocks, _, n_submeshes, n_configs = times.shape
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
                    t = times[first, last, s, c]
                    q = min(max_in_flight[first, last, s, c], n_blocks - 1 - last)
                    if t == np.inf or q < min(1, n_blocks - 1 - last):
                        continue
                    d = extra[first, last, s, c] if has_extra else 0.0
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
