"""Compiled inner loops of `solver.stages.layers`: all arrays, no validation.

Shapes: ``C`` configs, ``L`` blocks, ``P`` stages. A segment ``k..e-1`` is written by its first block and its end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.compiling import compiled_once_it_pays

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@compiled_once_it_pays(pays_after=150_000)
def memory_reach(static: Floats, activation: Floats, transient: Floats, capacity: Floats, in_flight: Ints) -> Ints:
    """``reach[i, c, k]``: the greatest end of a segment that starts at block k and fits stage i under config c.

    ``static[L+1]`` and ``activation[C, L+1]`` are running sums, ``transient[C, L]`` is per block; all in bytes, as is
    ``capacity[P]``. Two pointers over a window whose maximum is kept in a queue of falling transients.
    """
    n_configs, n_blocks = transient.shape
    n_stages = capacity.shape[0]
    reach = np.zeros((n_stages, n_configs, n_blocks), np.int64)
    queue = np.zeros(n_blocks, np.int64)
    for i in range(n_stages):
        for c in range(n_configs):
            head, tail, end = 0, 0, 0
            for k in range(n_blocks):
                end = max(end, k)
                while head < tail and queue[head] < k:
                    head += 1
                while end < n_blocks:
                    peak = transient[c, end]
                    if head < tail and transient[c, queue[head]] > peak:
                        peak = transient[c, queue[head]]
                    held = in_flight[i] * (activation[c, end + 1] - activation[c, k])
                    if static[end + 1] - static[k] + held + peak > capacity[i]:
                        break
                    while head < tail and transient[c, queue[tail - 1]] <= transient[c, end]:
                        tail -= 1
                    if head == tail:
                        head, tail = 0, 0
                    queue[tail] = end
                    tail += 1
                    end += 1
                reach[i, c, k] = end
    return reach


@compiled_once_it_pays(pays_after=500_000)
def least_rest(time: Floats, boundary: Floats) -> Floats:
    """``rest[i, k]``: no split of blocks k.. over stages i.. has a smaller sum of stage times; ``time[P, C, L]`` per block."""
    n_stages, n_configs, n_blocks = time.shape
    rest = np.zeros((n_stages + 1, n_blocks + 1))
    fastest = np.full(n_blocks, np.inf)
    boundaries = 0.0
    for i in range(n_stages - 1, -1, -1):
        boundaries += boundary[i]
        blocks = 0.0
        rest[i, n_blocks] = boundaries
        for k in range(n_blocks - 1, -1, -1):
            for c in range(n_configs):
                fastest[k] = min(fastest[k], time[i, c, k])
            blocks += fastest[k]
            rest[i, k] = blocks + boundaries
    return rest


@compiled_once_it_pays(pays_after=300_000)
def least_tail(
    cumulative_time: Floats,
    cumulative_extra: Floats,
    boundary: Floats,
    passing: Floats,
    step: Floats,
    fits: Ints,
    rest: Floats,
    waiting: float,
    limit: float,
    below: float,
) -> tuple[float, Ints, Ints]:
    """Least tail of a split with no stage longer than ``limit``, with the end and the config of each stage.

    ``cumulative_time[P, C, L+1]`` and ``cumulative_extra[P, L+1]`` are running sums, ``boundary[P]`` and ``step[P]`` add to
    a stage's time and extra, ``passing[P]`` instead of ``boundary`` to its time in the tail, ``fits`` comes from
    `memory_reach` and ``rest`` from `least_rest`, which like every time in the tail counts ``waiting`` times. The tail is
    infinite when there is no split with a tail less than ``below``.
    """
    n_stages, n_configs, n_blocks = fits.shape
    ends = np.zeros(n_stages, np.int64)
    configs = np.zeros(n_stages, np.int64)
    reach, farthest = _time_reach(cumulative_time, boundary, fits, limit)
    first, last = _cut_windows(farthest)
    for i in range(n_stages + 1):
        if first[i] > last[i]:
            return np.inf, ends, configs

    tail = np.full((n_stages + 1, n_blocks + 1), np.inf)
    came_from = np.zeros((n_stages + 1, n_blocks + 1), np.int64)
    came_with = np.zeros((n_stages + 1, n_blocks + 1), np.int64)
    tail[0, 0] = 0.0
    for i in range(n_stages):
        for k in range(first[i], last[i] + 1):
            if tail[i, k] + rest[i, k] >= below:
                continue
            for e in range(max(k + 1, first[i + 1]), min(farthest[i, k], last[i + 1]) + 1):
                base = max(tail[i, k], cumulative_extra[i, e] - cumulative_extra[i, k] + step[i])
                for c in range(n_configs):
                    if reach[i, c, k] < e:
                        continue
                    value = base + waiting * (cumulative_time[i, c, e] - cumulative_time[i, c, k] + passing[i])
                    if value < tail[i + 1, e]:
                        tail[i + 1, e] = value
                        came_from[i + 1, e] = k
                        came_with[i + 1, e] = c
    best = tail[n_stages, n_blocks]
    if not best < below:
        return np.inf, ends, configs
    end = n_blocks
    for i in range(n_stages, 0, -1):
        ends[i - 1] = end
        configs[i - 1] = came_with[i, end]
        end = came_from[i, end]
    return float(best), ends, configs


@compiled_once_it_pays(pays_after=500_000)
def _time_reach(cumulative_time: Floats, boundary: Floats, fits: Ints, limit: float) -> tuple[Ints, Ints]:
    """As `memory_reach` with the time limit added: per config, and the greatest over configs ``[P, L]``."""
    n_stages, n_configs, n_blocks = fits.shape
    reach = np.zeros((n_stages, n_configs, n_blocks), np.int64)
    farthest = np.zeros((n_stages, n_blocks), np.int64)
    for i in range(n_stages):
        for c in range(n_configs):
            end = 0
            for k in range(n_blocks):
                end = max(end, k)
                while end < fits[i, c, k] and cumulative_time[i, c, end + 1] - cumulative_time[i, c, k] + boundary[i] <= limit:
                    end += 1
                reach[i, c, k] = end
                farthest[i, k] = max(farthest[i, k], end)
    return reach, farthest


@compiled_once_it_pays(pays_after=500_000)
def _cut_windows(farthest: Ints) -> tuple[Ints, Ints]:
    """Bounds ``[P+1]`` on the block that stage i begins with, from both ends; an empty range means that no split exists."""
    n_stages, n_blocks = farthest.shape
    first = np.zeros(n_stages + 1, np.int64)
    last = np.zeros(n_stages + 1, np.int64)
    for i in range(n_stages):
        last[i + 1] = min(farthest[i, last[i]], n_blocks - (n_stages - i - 1))
    first[n_stages] = n_blocks
    for i in range(n_stages - 1, -1, -1):
        k = first[i + 1] - 1
        while k > i and farthest[i, k - 1] >= first[i + 1]:
            k -= 1
        first[i] = k
    return first, last


@compiled_once_it_pays(pays_after=10_000)
def least_shortage(
    static: Floats, activation: Floats, transient: Floats, capacity: Floats, in_flight: Ints
) -> tuple[Ints, Ints]:
    """Ends and configs of the split whose largest ``need - capacity`` over stages is least; arguments as `memory_reach`."""
    n_configs, n_blocks = transient.shape
    n_stages = capacity.shape[0]
    worst = np.full((n_stages + 1, n_blocks + 1), np.inf)
    came_from = np.zeros((n_stages + 1, n_blocks + 1), np.int64)
    came_with = np.zeros((n_stages + 1, n_blocks + 1), np.int64)
    worst[0, 0] = -np.inf
    for i in range(n_stages):
        for k in range(i, n_blocks - (n_stages - i - 1)):
            for c in range(n_configs):
                peak = 0.0
                for e in range(k + 1, n_blocks - (n_stages - i - 1) + 1):
                    peak = max(peak, transient[c, e - 1])
                    held = in_flight[i] * (activation[c, e] - activation[c, k])
                    short = max(worst[i, k], static[e] - static[k] + held + peak - capacity[i])
                    if short < worst[i + 1, e]:
                        worst[i + 1, e] = short
                        came_from[i + 1, e] = k
                        came_with[i + 1, e] = c
    ends = np.zeros(n_stages, np.int64)
    configs = np.zeros(n_stages, np.int64)
    end = n_blocks
    for i in range(n_stages, 0, -1):
        ends[i - 1] = end
        configs[i - 1] = came_with[i, end]
        end = came_from[i, end]
    return ends, configs
