"""The least work of each sharding: what bounds a schedule before its memory and sends are looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.solver.problem.choices import Recompute
from meshwright.solver.training.costs.stage_table import FloatArray
from meshwright.solver.training.search.bundle_kernels import ROUNDING
from meshwright.solver.training.search.choice_rows import Laid


@dataclass(frozen=True, eq=False)
class LeastWork:
    """The least time of a micro-batch through all layers of each sharding, infinite where memory with one in flight can't
    suffice, by the modes that stages may choose from; and the least of these."""

    work_s: dict[tuple[Recompute, ...], FloatArray]
    least_s: dict[tuple[Recompute, ...], float]

    @classmethod
    def of(cls, of: Laid, sets: Sequence[tuple[Recompute, ...]], *, among: Sequence[Recompute], n_stages: int) -> LeastWork:
        """Return what layouts take under each of some sets of modes, which are ``among`` those of the layouts."""
        work_s = {}
        capacity = n_stages * float(of.capacity_bytes.max()) * (1.0 + ROUNDING)
        kept_bytes = of.kept_bytes + of.static_bytes[:, None]
        for modes in dict.fromkeys(sets):
            chosen = [among.index(mode) for mode in modes]
            crowded = kept_bytes[:, chosen].min(axis=(0, 1)).sum(axis=-1) > capacity
            work_s[modes] = np.where(crowded, np.inf, of.time_s[:, chosen].min(axis=(0, 1)).sum(axis=-1))
        return cls(work_s, {modes: float(each.min()) for modes, each in work_s.items()})

    def passes(
        self, modes: tuple[Recompute, ...], waiting: Callable[[], float], *, pp: int, n_microbatches: int, below: float
    ) -> float:
        """Passes of all layers that a step under a schedule takes at least: its stages share the work evenly at best. It is
        asked how long it waits only where the work alone takes less than ``below``."""
        passes = n_microbatches / pp
        if passes * self.least_s[modes] < below:
            wait = waiting()
            passes = max(passes, wait + (n_microbatches - wait) / pp)
        return passes
