"""Random layers that are pinned to stages, and whether stages hold them, for all who cut layers into stages."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from meshwright.solver.stages import Pinned


def random_pins(rng: np.random.Generator, n_layers: int, n_stages: int) -> tuple[Pinned, ...]:
    """In two of three problems none; else one run of layers or two, each on a stage; at times on one that there is not."""
    pins = []
    for _ in range(int(rng.choice([0, 0, 0, 0, 1, 2]))):
        first, last = np.sort(rng.integers(0, n_layers, 2))
        pins.append(Pinned(tuple(range(first, last + 1)), int(rng.integers(-n_stages, n_stages + (rng.random() < 0.1)))))
    return tuple(pins)


def holds_pins(pinned: Sequence[Pinned], stages: Sequence[Collection[int]]) -> bool:
    """Return True if each pinned layer is among those of its stage, counted from either end."""
    known = dict(enumerate(stages)) | {place - len(stages): layers for place, layers in enumerate(stages)}
    return all(layer in known.get(each.stage, ()) for each in pinned for layer in each.layers)
