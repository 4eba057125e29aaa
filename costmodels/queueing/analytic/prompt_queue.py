"""Prompts that wait while an engine steps: a queue with service in bulk, solved as a Markov chain over the starts of steps.

A step takes every prompt token that waits, up to its room, and lasts the longer the more it takes; who arrives meanwhile waits
for its end (Bailey 1954; Neuts 1979, M/G/1 with bulk service that depends on the batch). Tokens are counted in cells.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.compiling import compiled_inside, kept_compiled

FloatArray = npt.NDArray[np.float64]

BINS_OF_A_FACTOR = 160
"""Bins of a histogram of times for each factor of ten: 1.4% wide."""

BINS = 5 * BINS_OF_A_FACTOR

_ARRIVALS_WITHIN_A_STEP = 4
"""Moments within a step at which arrivals are looked at, evenly spread."""

_NEGLIGIBLE = 1e-6


class PromptSteps(NamedTuple):
    """The work of steps on prompts while the same number of sequences decodes.

    step_s     [c] time of a step that takes c cells of prompt tokens; the last holds as many as there is room for
    room       cells that a step has room for, not a whole number in general
    prompt     [c] share of the prompts that have c cells
    drained_s  how long the stages that a pipeline's last prompts still pass hold up the steps behind it; 0 for one stage
    through    how many times as long as it holds a stage a step takes to leave the pipeline
    splits     steps that a mean prompt fills before its last; in a pipeline each must leave before the next begins
    idle       chance that the engine waits for an arrival where nothing is in the queue, rather than takes another step
    """

    step_s: FloatArray
    room: float
    prompt: FloatArray
    drained_s: float
    through: float
    splits: int
    idle: float


@kept_compiled
def first_token_times(
    steps: PromptSteps, arrivals_per_s: float, least_s: float, cells: int, times: FloatArray
) -> tuple[float, float]:
    """Adds to the histogram ``times`` the shares of arrivals by their time to first token, bins from ``least_s`` on.

    Returns the mean time between the starts of two steps; nothing is added where ``times`` is empty.
    """
    last = len(steps.step_s) - 1
    chance = np.zeros((last + 2, cells))
    for taken in range(last + 1):
        _find_arrivals(steps.prompt, arrivals_per_s * steps.step_s[taken], chance[taken])
    _find_arrivals(steps.prompt, arrivals_per_s * steps.drained_s, chance[last + 1])
    share = _stationary(steps, chance, cells)
    spent_s, started = steps.drained_s * share[cells], share[cells]
    for waiting in range(cells):
        step_s = steps.step_s[min(waiting, last)]
        busy = 1.0 - steps.idle if waiting == 0 else 1.0
        spent_s += share[waiting] * busy * step_s
        started += share[waiting] * busy
    if len(times) > 0:
        total_s = spent_s + share[0] * steps.idle / arrivals_per_s
        _add_times(steps, share, arrivals_per_s, least_s, total_s, times)
    return spent_s / max(started, 1e-300), (share[0] * (1.0 - steps.idle)) / max(started, 1e-300)


@compiled_inside
def _arrivals(prompt: FloatArray, expected: float, cells: int) -> FloatArray:
    """[c] chance that c cells arrive where ``expected`` prompts do on average."""
    found = np.zeros(cells)
    _find_arrivals(prompt, expected, found)
    return found


@compiled_inside
def _find_arrivals(prompt: FloatArray, expected: float, found: FloatArray) -> None:
    """Set each ``found[c]`` to that chance (Panjer 1981)."""
    found[0] = math.exp(-expected * (1.0 - prompt[0]))
    longest = len(prompt)
    for c in range(1, len(found)):
        total = 0.0
        for size in range(1, min(c + 1, longest)):
            total += size * prompt[size] * found[c - size]
        found[c] = expected / c * total


@compiled_inside
def _stationary(steps: PromptSteps, chance: FloatArray, cells: int) -> FloatArray:
    """[c] share of steps that start with c cells waiting, and of pipelines just drained: elimination without differences
    (Grassmann, Taksar and Heyman 1985)."""
    last = len(steps.step_s) - 1
    whole = int(steps.room + 1e-9)
    part = max(0.0, steps.room - whole)
    size = cells + 1
    moves = np.zeros((size, size))
    for waiting in range(size):
        row = chance[last + 1] if waiting == cells else chance[min(waiting, last)]
        busy = 1.0 - steps.idle if waiting == 0 else 1.0
        for more in range(2):
            weight = busy * (part if more == 1 else 1.0 - part)
            left = 0 if waiting == cells else max(0, waiting - whole - more)
            within = 0.0
            for c in range(cells - 1 - left):
                moves[waiting, left + c] += weight * row[c]
                within += row[c]
            moves[waiting, cells - 1] += weight * max(0.0, 1.0 - within)
        if waiting == 0:
            for c in range(len(steps.prompt)):
                moves[0, min(c, cells - 1)] += steps.idle * steps.prompt[c]
        elif waiting < cells and steps.drained_s > 0.0:
            moves[waiting, cells] = moves[waiting, 0]
            moves[waiting, 0] = 0.0
    for k in range(size - 1, 0, -1):
        out = 0.0
        for j in range(k):
            out += moves[k, j]
        out = max(out, 1e-300)
        for i in range(k):
            rate = moves[i, k] / out
            moves[i, k] = rate
            if rate > 0.0:
                for j in range(k):
                    moves[i, j] += rate * moves[k, j]
    share = np.zeros(size)
    share[0] = total = 1.0
    for k in range(1, size):
        for i in range(k):
            share[k] += share[i] * moves[i, k]
        total += share[k]
    for k in range(size):
        share[k] /= total
    return share


@compiled_inside
def _add_times(
    steps: PromptSteps, share: FloatArray, arrivals_per_s: float, least_s: float, total_s: float, times: FloatArray
) -> None:
    """Arrivals see each step as often as it lasts; they wait for its end, for steps filled by those ahead, and for their own,
    which takes along who came after them."""
    last, cells = len(steps.step_s) - 1, len(share) - 1
    whole = int(steps.room + 1e-9)
    part = max(0.0, steps.room - whole)
    behind = np.zeros(cells)
    for waiting in range(last, cells):
        for more in range(2):
            behind[max(0, waiting - whole - more)] += share[waiting] * (part if more == 1 else 1.0 - part)
    of_behind = 0.0
    for waiting in range(cells):
        of_behind += behind[waiting]
    ahead = np.zeros(cells)
    ahead[0] = 1.0
    if steps.idle > 0.0:
        weight = share[0] * steps.idle / arrivals_per_s / total_s
        _add_own(steps, steps.prompt, 0.0, arrivals_per_s, least_s, weight, times)
    for waiting in range(last + 2):
        drained = waiting == last + 1
        step_s = steps.drained_s if drained else steps.step_s[waiting]
        seen = share[cells] if drained else share[waiting]
        if waiting == last:
            seen = of_behind
            if seen > 0.0:
                for c in range(cells):
                    ahead[c] = behind[c] / seen
        elif waiting == last + 1:
            for c in range(cells):
                ahead[c] = 1.0 if c == 0 else 0.0
        elif waiting == 0:
            seen *= 1.0 - steps.idle
        weight = seen * step_s / total_s / _ARRIVALS_WITHIN_A_STEP
        if weight < _NEGLIGIBLE:
            continue
        for moment in range(_ARRIVALS_WITHIN_A_STEP):
            since = (moment + 0.5) / _ARRIVALS_WITHIN_A_STEP
            earlier = _arrivals(steps.prompt, arrivals_per_s * since * step_s, cells)
            own = _sum_of(_sum_of(ahead, earlier, cells), steps.prompt, cells)
            _add_own(steps, own, (1.0 - since) * step_s, arrivals_per_s, least_s, weight, times)


@compiled_inside
def _sum_of(one: FloatArray, other: FloatArray, cells: int) -> FloatArray:
    """Distribution of the sum of two counts of cells; what is beyond the last lies on it."""
    found = np.zeros(cells)
    for i in range(len(one)):
        if one[i] > _NEGLIGIBLE * _NEGLIGIBLE:
            for j in range(len(other)):
                found[min(cells - 1, i + j)] += one[i] * other[j]
    return found


@compiled_inside
def _add_own(
    steps: PromptSteps,
    own: FloatArray,
    rest_s: float,
    arrivals_per_s: float,
    least_s: float,
    weight: float,
    times: FloatArray,
) -> None:
    """Of who finds ``own`` cells up to the end of its prompt, and waits ``rest_s`` for the next step."""
    last = len(steps.step_s) - 1
    known, later = -1, np.zeros(last + 2)
    for c in range(len(own)):
        if own[c] * weight < _NEGLIGIBLE * _NEGLIGIBLE:
            continue
        full = max(0, math.ceil((c - 1e-9) / steps.room) - 1)
        before_s = rest_s + (full + min(full, steps.splits) * (steps.through - 1.0)) * steps.step_s[last]
        if full != known:
            known, later = full, _arrivals(steps.prompt, arrivals_per_s * before_s, last + 2)
        left = 1.0
        for more in range(last + 2):
            some = later[more] if more <= last else left
            left -= later[more]
            if some * own[c] * weight > _NEGLIGIBLE * _NEGLIGIBLE:
                taken = min(steps.room, c - full * steps.room + more)
                low = min(int(taken), last - 1) if last > 0 else 0
                end = steps.room if low == last - 1 else low + 1.0
                fraction = min(1.0, (taken - low) / max(end - low, 1e-9)) if last > 0 else 0.0
                step_s = steps.step_s[low] * (1.0 - fraction) + steps.step_s[min(low + 1, last)] * fraction
                at = math.log10(max(1.0, (before_s + steps.through * step_s) / least_s)) * BINS_OF_A_FACTOR
                times[min(len(times) - 1, int(at + 0.5))] += weight * own[c] * some
