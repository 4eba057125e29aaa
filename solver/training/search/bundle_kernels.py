"""Compiled inner loops of `solver.training.search.best_first`: lower bounds on step times of many shardings at once.

Shapes: ``N`` shardings, ``M`` recompute modes, ``K`` kinds of stages, ``L`` layers, ``P`` pipeline ranks. Times and kept bytes
are ``[K, M, N, L]``, what does not depend on the mode ``[K, N, L]``. A bound is infinite where no stages fit. ``below`` is what
a plan must beat: bounds at or above it are not worked out further, and where it is minus infinity so are they.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.compiling import kept_compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDING = 1e-9
"""Relative slack of what must fit: sums of another order differ by about 1e-15 a term."""

HALVINGS = 10
"""Halvings of the range of the longest stage: a bound is within a thousandth of the range of its best."""


@kept_compiled
def _fit_in_order(
    time: Floats,
    kept: Floats,
    transient: Floats,
    static: Floats,
    kind_of_stage: Ints,
    sends: Floats,
    capacity: Floats,
    in_flight: Ints,
    modes: Ints,
    sharding: int,
    limit: float,
) -> bool:
    """True if stages that take no longer than ``limit`` and fit can hold all layers, some stages maybe none.

    Each in turn takes as many as it can, which leaves the fewest to those behind it.
    """
    n_layers = static.shape[2]
    done = 0
    for stage in range(kind_of_stage.shape[0]):
        k = kind_of_stage[stage]
        room_s = (limit - sends[stage]) * (1.0 + ROUNDING)
        room = capacity[k] * (1.0 + ROUNDING)
        reached = done
        for mode in modes:
            passes = held = peak = 0.0
            end = done
            while end < n_layers:
                passes += time[k, mode, sharding, end]
                held += static[k, sharding, end] + in_flight[stage] * kept[k, mode, sharding, end]
                peak = max(peak, transient[k, mode, sharding, end])
                if passes > room_s or held + peak > room:
                    break
                end += 1
            reached = max(reached, end)
        done = reached
        if done == n_layers:
            return True
    return False


@kept_compiled
def any_borders_bounds(
    time: Floats,
    kept: Floats,
    transient: Floats,
    static: Floats,
    extra: Floats,
    kind_of_stage: Ints,
    sends: Floats,
    beside: Floats,
    capacity: Floats,
    in_flight: Ints,
    modes: Ints,
    first_layers: Ints,
    in_order: bool,
    n_microbatches: int,
    waiting: float,
    below: Floats,
) -> Floats:
    """``[N]``: bounds of pipelines whose ranks hold one part each, with any borders and any of ``modes`` on each stage.

    The first stage holds one of ``first_layers``. Stages hold layers ``in_order``, or sets of them where a model branches.
    """
    n_kinds, n_shardings, n_layers = static.shape
    pp = kind_of_stage.shape[0]
    weight = n_microbatches - waiting
    bounds = np.zeros(n_shardings)
    longest_send = sends.min()
    most = capacity.max() * (1.0 + ROUNDING)
    for n in range(n_shardings):
        if below[n] == -np.inf:
            bounds[n] = -np.inf
            continue
        work = extras = least_kept = slowest_layer = 0.0
        for layer in range(n_layers):
            fastest = smallest = least_extra = np.inf
            for k in range(n_kinds):
                least_extra = min(least_extra, extra[k, n, layer])
                for mode in modes:
                    fastest = min(fastest, time[k, mode, n, layer])
                    smallest = min(smallest, static[k, n, layer] + kept[k, mode, n, layer])
            work += fastest
            extras += least_extra
            least_kept += smallest
            slowest_layer = max(slowest_layer, fastest)
        if least_kept > pp * most:
            bounds[n] = np.inf
            continue
        first_extra = np.inf
        for k in range(n_kinds):
            for layer in first_layers:
                first_extra = min(first_extra, extra[k, n, layer])
        tail = waiting * (work + sends.sum() + beside.sum()) + first_extra
        mean = (n_microbatches * (work + sends.sum()) + extras) / pp + beside.min()
        low = max(slowest_layer + longest_send, work / pp + longest_send, beside.max())
        bound = max(mean, tail + weight * low)
        if bound >= below[n] or not in_order:
            bounds[n] = bound
            continue
        if below[n] == np.inf:
            high = 0.0
            for k in range(n_kinds):
                for mode in modes:
                    high = max(high, time[k, mode, n].sum())
            high += sends.max()
        else:
            high = (below[n] - tail) / weight if weight > 0.0 else np.inf
        high = max(high, low)
        if not _fit_in_order(time, kept, transient, static, kind_of_stage, sends, capacity, in_flight, modes, n, high):
            bounds[n] = below[n]
            continue
        if high < np.inf:
            for _ in range(HALVINGS):
                middle = 0.5 * (low + high)
                if _fit_in_order(time, kept, transient, static, kind_of_stage, sends, capacity, in_flight, modes, n, middle):
                    high = middle
                else:
                    low = middle
        bounds[n] = max(mean, tail + weight * low)
    return bounds


@kept_compiled
def _ranks_fit(
    sums: Floats,
    transient: Floats,
    kind_of_stage: Ints,
    capacity: Floats,
    cut: Ints,
    parts: Ints,
    held: Ints,
    n_held: Ints,
    of_part: Floats,
) -> bool:
    """True if what each rank holds fits; ``sums`` [K, figure, L + 1] and all else as `even_borders_bounds` has them,
    ``transient`` [K, L], ``of_part`` [part of a rank] is overwritten."""
    pp, of_rank = parts.shape
    for rank in range(pp):
        k = kind_of_stage[rank]
        states = peak = 0.0
        for i in range(of_rank):
            first, end = cut[parts[rank, i]], cut[parts[rank, i] + 1]
            of_part[i] = sums[k, 1, end] - sums[k, 1, first]
            states += sums[k, 2, end] - sums[k, 2, first]
            for layer in range(first, end):
                peak = max(peak, transient[k, layer])
        activations = 0.0
        for moment in range(n_held[rank]):
            now = 0.0
            for i in range(of_rank):
                now += held[rank, moment, i] * of_part[i]
            activations = max(activations, now)
        if states + activations + peak > capacity[k] * (1.0 + ROUNDING):
            return False
    return True


@kept_compiled
def even_borders_bounds(
    time: Floats,
    kept: Floats,
    transient: Floats,
    static: Floats,
    extra: Floats,
    kind_of_stage: Ints,
    sends: Floats,
    sends_once: Floats,
    beside: Floats,
    capacity: Floats,
    cuts: Ints,
    parts: Ints,
    held: Ints,
    n_held: Ints,
    copies: int,
    mode: int,
    n_microbatches: int,
    waiting: float,
    below: Floats,
) -> Floats:
    """``[N]``: step times of the best even cut that fits, of pipelines whose ranks hold several parts, under one mode; where
    none takes less than ``below`` [N], a bound of the best of all that is no less.

    ``cuts`` [cut, part + 1] and ``parts`` [rank, part of it] as in `solver.training.costs.part_borders`; ``held`` [rank,
    moment, part of it] passes at once, ``n_held`` [rank] moments.
    """
    n_kinds, n_shardings, n_layers = static.shape
    pp, of_rank = parts.shape
    n_cuts = cuts.shape[0]
    weight = n_microbatches - waiting
    bounds = np.zeros(n_shardings)
    most = capacity.max() * (1.0 + ROUNDING)
    sums = np.zeros((n_kinds, 4, n_layers + 1))
    of_part = np.zeros(of_rank)
    for n in range(n_shardings):
        if below[n] == -np.inf:
            bounds[n] = -np.inf
            continue
        work = extras = least_kept = 0.0
        for layer in range(n_layers):
            fastest = smallest = least_extra = np.inf
            for k in range(n_kinds):
                fastest = min(fastest, time[k, mode, n, layer])
                smallest = min(smallest, static[k, n, layer] + kept[k, mode, n, layer])
                least_extra = min(least_extra, extra[k, n, layer])
            work += fastest
            extras += least_extra
            least_kept += smallest
        if least_kept > pp * most:
            bounds[n] = np.inf
            continue
        mean = max(
            (n_microbatches * work + extras) / pp + beside.min(),
            waiting * work + weight * work / pp,
        )
        if mean >= below[n]:
            bounds[n] = mean
            continue
        for k in range(n_kinds):
            for layer in range(n_layers):
                sums[k, 0, layer + 1] = sums[k, 0, layer] + time[k, mode, n, layer]
                sums[k, 1, layer + 1] = sums[k, 1, layer] + kept[k, mode, n, layer]
                sums[k, 2, layer + 1] = sums[k, 2, layer] + static[k, n, layer]
                sums[k, 3, layer + 1] = sums[k, 3, layer] + extra[k, n, layer]
        best = slower = np.inf
        for cut in range(n_cuts):
            longest = behind = tail = 0.0
            for rank in range(pp - 1, -1, -1):
                k = kind_of_stage[rank]
                computing = once = 0.0
                for i in range(of_rank):
                    first, end = cuts[cut, parts[rank, i]], cuts[cut, parts[rank, i] + 1]
                    computing += sums[k, 0, end] - sums[k, 0, first]
                    once += sums[k, 3, end] - sums[k, 3, first]
                computing = computing / copies + sends[rank]
                longest = max(longest, max(computing, beside[rank]))
                behind += waiting * (computing + beside[rank])
                tail = max(tail, once + sends_once[rank] + behind)
                # Ranks before this one only add to it.
                so_far = weight * longest + tail
                if so_far >= best or so_far * (1.0 - ROUNDING) >= below[n]:
                    break
            step = weight * longest + tail
            # Memory takes longer to work out, and is asked about only where it matters.
            if step * (1.0 - ROUNDING) >= below[n]:
                slower = min(slower, step)
            elif step < best and _ranks_fit(
                sums, transient[:, mode, n], kind_of_stage, capacity, cuts[cut], parts, held, n_held, of_part
            ):
                best = step
        best = min(best, slower)
        bounds[n] = max(best * (1.0 - ROUNDING), mean)
    return bounds


# Compiled inner loops of `solver.training.search.best_first`: bounds of many shardings where some layers are recomputed whole.
#
# Shapes and names as in `bundle_kernels`. ``again`` [layer] says which layers can be recomputed; the first ones of each part
# are.


@kept_compiled
def some_layers_bounds(
    time: Floats,
    kept: Floats,
    transient: Floats,
    static: Floats,
    extra: Floats,
    capacity: Floats,
    again: NDArray[np.bool_],
    none: int,
    full: int,
    n_microbatches: int,
) -> Floats:
    """``[N]``: step times on one stage that runs the fewest first layers again, of those that can be, with which it fits; at
    least one of them."""
    n_shardings, n_layers = static.shape[1], static.shape[2]
    bounds = np.full(n_shardings, np.inf)
    room = capacity[0] * (1.0 + ROUNDING)
    for n in range(n_shardings):
        passes = held = 0.0
        for layer in range(n_layers):
            passes += time[0, none, n, layer]
            held += static[0, n, layer] + kept[0, none, n, layer]
        for layer in range(n_layers):
            if not again[layer]:
                continue
            passes += time[0, full, n, layer] - time[0, none, n, layer]
            held += kept[0, full, n, layer] - kept[0, none, n, layer]
            if held > room:
                continue
            peak = 0.0
            for other in range(n_layers):
                mode = full if other <= layer and again[other] else none
                peak = max(peak, transient[0, mode, n, other])
            if held + peak <= room:
                bounds[n] = (n_microbatches * passes + extra[0, n].sum()) * (1.0 - ROUNDING)
                break
    return bounds


@kept_compiled
def _fewest_that_fit(
    sums: Floats,
    transient: Floats,
    sharding: int,
    kind_of_stage: Ints,
    capacity: Floats,
    cut: Ints,
    parts: Ints,
    held: Ints,
    n_held: Ints,
    before: Ints,
    behind: Ints,
) -> int:
    """The least number of first layers, at least one, with which all ranks fit whose parts run so many again; 0 if none does.

    ``sums`` [K, figure, L + 1] as the bounds have them, ``before`` [L + 1] layers that can be recomputed before each,
    ``behind`` the layer behind the n-th of them.
    """
    pp, of_rank = parts.shape
    n_again = before[len(before) - 1]
    all_layers = 1
    for part in range(len(cut) - 1):
        all_layers = max(all_layers, before[cut[part + 1]] - before[cut[part]])
    fewest = 1
    for rank in range(pp):
        k = kind_of_stage[rank]
        room = capacity[k] * (1.0 + ROUNDING)
        peak = 0.0
        for i in range(of_rank):
            first, end = cut[parts[rank, i]], cut[parts[rank, i] + 1]
            room -= sums[k, 4, end] - sums[k, 4, first]
            for layer in range(first, end):
                peak = max(peak, transient[k, sharding, layer])
        room -= peak
        # The number is one for all ranks: each needs as many as those before it, or more.
        low, high, fits = fewest, all_layers, False
        while low <= high:
            middle = low if not fits and low == fewest else (low + high) // 2
            activations = 0.0
            for moment in range(n_held[rank]):
                now = 0.0
                for i in range(of_rank):
                    first, end = cut[parts[rank, i]], cut[parts[rank, i] + 1]
                    stop = max(first, min(end, behind[min(before[first] + middle, n_again)]))
                    now += held[rank, moment, i] * (sums[k, 3, stop] - sums[k, 3, first] + sums[k, 2, end] - sums[k, 2, stop])
                activations = max(activations, now)
            if activations <= room:
                fits, high = True, middle - 1
                fewest = middle
            else:
                low = middle + 1
        if not fits:
            return 0
    return fewest


@kept_compiled
def _step_of_parts(
    sums: Floats,
    kind_of_stage: Ints,
    sends: Floats,
    sends_once: Floats,
    beside: Floats,
    cut: Ints,
    parts: Ints,
    before: Ints,
    behind: Ints,
    number: int,
    weight: float,
    waiting: float,
) -> float:
    """Step time of ranks whose parts run their first ``number`` layers again; other arguments as for `_fewest_that_fit`."""
    pp, of_rank = parts.shape
    n_again = before[len(before) - 1]
    longest = behind_s = tail = 0.0
    for rank in range(pp - 1, -1, -1):
        k = kind_of_stage[rank]
        computing = once = 0.0
        for i in range(of_rank):
            first, end = cut[parts[rank, i]], cut[parts[rank, i] + 1]
            stop = max(first, min(end, behind[min(before[first] + number, n_again)]))
            computing += sums[k, 1, stop] - sums[k, 1, first] + sums[k, 0, end] - sums[k, 0, stop]
            once += sums[k, 5, end] - sums[k, 5, first]
        computing += sends[rank]
        longest = max(longest, max(computing, beside[rank]))
        behind_s += waiting * (computing + beside[rank])
        tail = max(tail, once + sends_once[rank] + behind_s)
    return weight * longest + tail


@kept_compiled
def some_of_parts_bounds(
    time: Floats,
    kept: Floats,
    transient: Floats,
    static: Floats,
    extra: Floats,
    kind_of_stage: Ints,
    sends: Floats,
    sends_once: Floats,
    beside: Floats,
    capacity: Floats,
    cuts: Ints,
    parts: Ints,
    held: Ints,
    n_held: Ints,
    again: NDArray[np.bool_],
    none: int,
    full: int,
    n_microbatches: int,
    waiting: float,
    below: Floats,
) -> Floats:
    """``[N]``: as `even_borders_bounds`, of pipelines whose parts run the fewest first layers again, of those that can be
    (``again``), with which they fit; at least one. Transients are the least of both modes, so that fewer never need less."""
    n_kinds, n_shardings, n_layers = static.shape
    pp, n_cuts = len(parts), len(cuts)
    weight = n_microbatches - waiting
    bounds = np.full(n_shardings, np.inf)
    before = np.zeros(n_layers + 1, np.int64)
    behind = np.zeros(n_layers + 1, np.int64)
    for layer in range(n_layers):
        before[layer + 1] = before[layer]
        if again[layer]:
            before[layer + 1] += 1
            behind[before[layer + 1]] = layer + 1
    least_transient = np.minimum(transient[:, none], transient[:, full])
    # Time and kept bytes under each mode; static bytes and extras.
    sums = np.zeros((n_kinds, 6, n_layers + 1))
    for n in range(n_shardings):
        if below[n] == -np.inf:
            bounds[n] = -np.inf
            continue
        for k in range(n_kinds):
            for layer in range(n_layers):
                sums[k, 0, layer + 1] = sums[k, 0, layer] + time[k, none, n, layer]
                sums[k, 1, layer + 1] = sums[k, 1, layer] + time[k, full, n, layer]
                sums[k, 2, layer + 1] = sums[k, 2, layer] + kept[k, none, n, layer]
                sums[k, 3, layer + 1] = sums[k, 3, layer] + kept[k, full, n, layer]
                sums[k, 4, layer + 1] = sums[k, 4, layer] + static[k, n, layer]
                sums[k, 5, layer + 1] = sums[k, 5, layer] + extra[k, n, layer]
        work = extras = 0.0
        for layer in range(n_layers):
            fastest = least_extra = np.inf
            for k in range(n_kinds):
                fastest = min(fastest, time[k, none, n, layer])
                least_extra = min(least_extra, extra[k, n, layer])
            work += fastest
            extras += least_extra
        mean = max((n_microbatches * work + extras) / pp + beside.min(), waiting * work + weight * work / pp)
        if mean >= below[n]:
            bounds[n] = mean
            continue
        best = np.inf
        for cut in range(n_cuts):
            # With one layer again it takes least: often enough to tell before its memory is looked at.
            step = _step_of_parts(
                sums, kind_of_stage, sends, sends_once, beside, cuts[cut], parts, before, behind, 1, weight, waiting
            )
            if step < min(best, below[n]):
                fewest = _fewest_that_fit(
                    sums, least_transient, n, kind_of_stage, capacity, cuts[cut], parts, held, n_held, before, behind
                )
                if fewest == 0:
                    continue
                step = _step_of_parts(
                    sums, kind_of_stage, sends, sends_once, beside, cuts[cut], parts, before, behind, fewest, weight, waiting
                )
            best = min(best, step)
        bounds[n] = best * (1.0 - ROUNDING)
    return bounds
