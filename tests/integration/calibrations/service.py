"""Shared by the tests of service and others: fitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.app.evidence.measuring.fitted import fit_calibration
from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.fitting.board import board_of
from meshwright.costmodels.fitting.samples import samples_of
from tests.unit.costmodels.measurements import collective_rows


def fitted() -> Calibration:
    """A calibration of H100 whose collectives are made up; the rest is shipped."""
    rows = samples_of(collective_rows())
    samples = replace(rows, device=np.full(len(rows), "h100_sxm"))
    board = board_of(samples, key="h100_sxm", node=None, cores=1)
    return fit_calibration(samples, board, folds=2, on_curve=lambda done, total, name: None).calibration
