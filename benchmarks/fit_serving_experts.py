"""Fits of the curves that only serving needs, with the machinery of the kernel fits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.curves.gemm import ExpertCurve, ExpertWork, Silicon, expert_points, modelled_experts_s
from meshwright.costmodels.fitting.calibration import fit_constants, fit_table, sample

Floats = NDArray[np.float64]

LOG2_ROW_NODES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15)
LOG2_EXPERT_NODES = tuple(range(10))
LOG2_WIDTH_NODES = tuple(range(5, 15))


def fit_experts(work: ExpertWork, seconds: Floats, *, silicon: Silicon, cores: int, seed: int = 0) -> ExpertCurve:
    """A curve for measured expert layers; arrays of one length."""
    nothing = ExpertCurve(
        cores=float(cores), launch_s=0.0, local_expert_s=0.0, memory_efficiency=1.0, saturating_waves=1.0, peak_efficiency=1.0,
        padding_rows=0.0, row_efficiency=1.0, joining=1.0, log2_rows=np.array(LOG2_ROW_NODES, float),
        log2_experts=np.array(LOG2_EXPERT_NODES, float), log2_width=np.array(LOG2_WIDTH_NODES, float),
        correction=np.zeros((len(LOG2_ROW_NODES), len(LOG2_EXPERT_NODES), len(LOG2_WIDTH_NODES))),
    )  # fmt: skip

    def curve_of(x: Floats) -> ExpertCurve:
        return nothing._replace(
            launch_s=x[0], local_expert_s=x[1], memory_efficiency=x[2], saturating_waves=x[3], peak_efficiency=x[4],
            padding_rows=x[5], row_efficiency=x[6], joining=x[7],
        )  # fmt: skip

    bounds = [
        (1e-6, 2e-5, 2e-4), (1e-9, 1e-8, 1e-6), (0.1, 0.7, 1.0), (0.01, 0.5, 10.0), (0.02, 0.6, 1.0), (0.1, 32.0, 512.0),
        (0.02, 0.5, 1.0), (1.0, 2.0, 8.0),
    ]  # fmt: skip
    chosen = sample(len(seconds), seed)
    picked = ExpertWork(*(column[chosen] for column in work))
    curve = curve_of(fit_constants(lambda x: modelled_experts_s(picked, curve_of(x), silicon), seconds[chosen], bounds))
    residual = np.log(seconds / modelled_experts_s(work, curve, silicon))
    table = fit_table(expert_points(work), (curve.log2_rows, curve.log2_experts, curve.log2_width), residual)
    return curve._replace(correction=table.reshape(curve.correction.shape))
