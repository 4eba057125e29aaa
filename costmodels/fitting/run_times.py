"""From measured steps to the law of times of a cluster and framework."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from meshwright.costmodels.calibration.from_runs import TimeLaw


def learned_time(prior: TimeLaw, log_ratios: Mapping[str, Sequence[float]]) -> TimeLaw:
    """Return the law after runs: by layout, logarithms of measured over predicted steps.

    Normal regression on the shared shift with known spreads. Runs of one layout share what it has of its own, so they count
    as one of their mean: measuring a layout again says little of the next one.
    """
    means = [fmean(ratios) for ratios in log_ratios.values() if ratios]
    if not means:
        return prior
    weight = 1.0 / prior.shared_sigma**2 + len(means) / prior.own_sigma**2
    shift = math.fsum(means) / prior.own_sigma**2 / weight
    runs = sum(map(len, log_ratios.values()))
    return replace(prior, scale=prior.scale * math.exp(shift), shared_sigma=math.sqrt(1.0 / weight), runs=runs)
