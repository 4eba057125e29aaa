"""Moments of a step in which a rank may need most memory."""

from __future__ import annotations

import numpy as np

from meshwright.costmodels.pipeline.traits import IntArray


def undominated(held: IntArray) -> IntArray:
    """Distinct rows ``[moment, part]`` but for those of which another row is at least as large in every column."""
    rows = np.unique(held, axis=0)
    at_least = np.all(rows[None, :, :] >= rows[:, None, :], axis=2)
    np.fill_diagonal(at_least, False)
    return np.asarray(rows[~at_least.any(axis=1)])
