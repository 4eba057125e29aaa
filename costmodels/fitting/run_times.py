"""From measured steps to the law of times: of many clusters, and of one after some of its runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist, fmean

from meshwright.costmodels.calibration.from_runs import TimeLaw
from meshwright.costmodels.fitting.calibration import quantile
from meshwright.costmodels.shared_error import QUANTILE, learned_error

OWN_SCATTER = 0.845
"""Spread of the logarithm of ``own_sigma`` from source to source: of 28 sources and devices with eight steps or more, less what
their number leaves uncertain (docs/decisions-accuracy.md)."""


def fitted_time(clusters: Iterable[Sequence[float]]) -> TimeLaw:
    """Return the law before any run, from logarithms of measured over predicted steps of clusters, which count alike.

    Shared is the root mean square of their means. The own spread is the one whose QUANTILE as many runs stay below, each seen
    from the mean of its cluster. The median stays what was predicted: what clusters have in common is for the rates to tell.
    """
    errors = [tuple(each) for each in clusters if each]
    means = [fmean(each) for each in errors]
    shared = math.sqrt(fmean(mean**2 for mean in means))
    inside = [[error - mean for error in each] for each, mean in zip(errors, means, strict=True) if len(each) > 1]
    own = quantile(inside, QUANTILE) / NormalDist().inv_cdf(QUANTILE) if inside else 0.0
    return TimeLaw(scale=1.0, shared_sigma=shared, own_sigma=max(0.0, own))


def learned_time(prior: TimeLaw, log_ratios: Mapping[str, Sequence[float]], *, scatter: float = OWN_SCATTER) -> TimeLaw:
    """Return the law after runs: by layout, logarithms of measured over predicted steps.

    They tell the shared shift and how far layouts scatter around it (`costmodels.shared_error`). Runs of one layout share what
    it has of its own, so they count as one of their mean: measuring a layout again says little of the next one.
    """
    means = [fmean(ratios) for ratios in log_ratios.values() if ratios]
    if not means:
        return prior
    told = learned_error(prior.shared_sigma, prior.own_sigma, scatter=scatter, seen=means)
    runs = sum(map(len, log_ratios.values()))
    scale = prior.scale * math.exp(told.shift)
    return replace(prior, scale=scale, shared_sigma=told.shared_sigma, own_sigma=told.own_sigma, runs=runs)
