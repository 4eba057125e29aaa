"""Layers that must lie on a stage that is named: what other stages may not hold, and how far a stage may reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pinned:
    """Layers, by their numbers in the model, and the stage that holds them: 0 is the first, -1 the last."""

    layers: tuple[int, ...]
    stage: int

    def place(self, n_stages: int) -> int:
        """Return which of so many stages it is, from 0; none of them where they are too few."""
        return self.stage if self.stage >= 0 else n_stages + self.stage


def barred(pinned: Sequence[Pinned], n_stages: int, n_layers: int) -> Bools:
    """[stage, layer] True where a layer is pinned to another stage; on all stages where there is none of that number."""
    found = np.zeros((n_stages, n_layers), bool)
    for each in pinned:
        found[np.ix_(np.arange(n_stages) != each.place(n_stages), each.layers)] = True
    return found


def reach(pinned: Sequence[Pinned], n_stages: int, n_layers: int) -> Ints:
    """[stage, first layer] the greatest end of a run of layers that may lie on the stage; the first layer itself for none."""
    ends = np.where(barred(pinned, n_stages, n_layers), np.arange(n_layers), n_layers)
    return np.asarray(np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1], np.int64)
