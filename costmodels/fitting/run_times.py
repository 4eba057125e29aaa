"""From measured steps to the law of times of a cluster and framework."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from meshwright.costmodels.calibration.from_runs import TimeLaw
from meshwright.costmodels.shared_error import learned_error

OWN_SCATTER = 0.83
"""Spread of the logarithm of ``own_sigma`` from source to source: of 28 sources and devices with eight steps or more, less what
their number leaves uncertain (docs/decisions-accuracy.md)."""


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
