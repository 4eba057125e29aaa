"""Compiled inner loops of `solver.training.search.bundles`: bounds of many shardings where some layers are recomputed whole.

Shapes and names as in `bundle_kernels`. ``again`` [layer] says which layers can be recomputed; the first ones of each part are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.compiling import kept_compiled
from meshwright.solver.training.search.bundle_kernels import ROUNDING, Floats, Ints, shown_sends_s


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
def _parts_fit(
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
    number: int,
) -> bool:
    """True if all ranks fit whose parts run their first ``number`` layers again; ``sums`` [K, figure, L + 1] as the bounds have
    them, ``before`` [L + 1] layers that can be recomputed before each, ``behind`` the layer behind the n-th of them."""
    pp, of_rank = parts.shape
    n_again = before[len(before) - 1]
    for rank in range(pp):
        k = kind_of_stage[rank]
        states = peak = activations = 0.0
        for i in range(of_rank):
            first, end = cut[parts[rank, i]], cut[parts[rank, i] + 1]
            states += sums[k, 4, end] - sums[k, 4, first]
            for layer in range(first, end):
                peak = max(peak, transient[k, sharding, layer])
        for moment in range(n_held[rank]):
            now = 0.0
            for i in range(of_rank):
                first, end = cut[parts[rank, i]], cut[parts[rank, i] + 1]
                stop = max(first, min(end, behind[min(before[first] + number, n_again)]))
                now += held[rank, moment, i] * (sums[k, 3, stop] - sums[k, 3, first] + sums[k, 2, end] - sums[k, 2, stop])
            activations = max(activations, now)
        if states + activations + peak > capacity[k] * (1.0 + ROUNDING):
            return False
    return True


@kept_compiled
def some_of_parts_bounds(
    time: Floats,
    kept: Floats,
    transient: Floats,
    static: Floats,
    extra: Floats,
    most_work: Floats,
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
    hides_sends: bool,
    none: int,
    full: int,
    n_microbatches: int,
    waiting: float,
    below: Floats,
) -> Floats:
    """``[N]``: as `even_borders_bounds`, of pipelines whose parts run the fewest first layers again, of those that can be
    (``again``), with which they fit; at least one. Transients are the least of both modes, so that fewer never need less."""
    n_kinds, n_shardings, n_layers = static.shape
    pp, of_rank = parts.shape
    n_cuts = cuts.shape[0]
    weight = n_microbatches - waiting
    bounds = np.full(n_shardings, np.inf)
    before = np.zeros(n_layers + 1, np.int64)
    behind = np.zeros(n_layers + 1, np.int64)
    for layer in range(n_layers):
        before[layer + 1] = before[layer]
        if again[layer]:
            before[layer + 1] += 1
            behind[before[layer + 1]] = layer + 1
    n_again = before[n_layers]
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
            most = 1
            for part in range(cuts.shape[1] - 1):
                most = max(most, before[cuts[cut, part + 1]] - before[cuts[cut, part]])
            if not _parts_fit(
                sums, least_transient, n, kind_of_stage, capacity, cuts[cut], parts, held, n_held, before, behind, most
            ):
                continue
            fewest = 1
            while fewest < most:
                middle = (fewest + most) // 2
                if _parts_fit(
                    sums, least_transient, n, kind_of_stage, capacity, cuts[cut], parts, held, n_held, before, behind, middle
                ):
                    most = middle
                else:
                    fewest = middle + 1
            longest = behind_s = tail = 0.0
            for rank in range(pp - 1, -1, -1):
                k = kind_of_stage[rank]
                computing = once = 0.0
                for i in range(of_rank):
                    first, end = cuts[cut, parts[rank, i]], cuts[cut, parts[rank, i] + 1]
                    stop = max(first, min(end, behind[min(before[first] + fewest, n_again)]))
                    computing += sums[k, 1, stop] - sums[k, 1, first] + sums[k, 0, end] - sums[k, 0, stop]
                    once += sums[k, 5, end] - sums[k, 5, first]
                shown = shown_sends_s(sends[rank], most_work[k, n], pp, hides_sends)
                computing += shown
                longest = max(longest, max(computing, beside[rank]))
                behind_s += waiting * (computing + beside[rank])
                tail = max(tail, once + sends_once[rank] + behind_s)
            best = min(best, weight * longest + tail)
        bounds[n] = best * (1.0 - ROUNDING)
    return bounds
