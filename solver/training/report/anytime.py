"""The progress of a search in several parts, which never tells a worse plan or bound than before."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.solver.control import Incumbent, OnProgress, Progress


@dataclass
class NeverWorse:
    """Tells ``listener`` of each moment of a part with the best plan and bound of all parts so far.

    A plan counts where the part can make its record. The bound of a part is that of the whole where ``alone``: no other form
    or arrangement may hold a faster plan. Else ``floor_s`` stands for it.
    """

    listener: OnProgress
    floor_s: float
    alone: bool
    best_s: float | None = None
    incumbent: Incumbent | None = None

    def __post_init__(self) -> None:
        self._bound_s = self.floor_s

    def __call__(self, progress: Progress) -> None:
        """Take note of a moment of a part, and tell it."""
        is_better = progress.best is not None and (self.best_s is None or progress.best < self.best_s)
        if is_better and progress.incumbent is not None:
            self.best_s = progress.best
        # The same plan may come with a better bound.
        if progress.incumbent is not None and progress.best == self.best_s:
            self.incumbent = progress.incumbent
        if self.alone and progress.bound is not None:
            self._bound_s = max(self._bound_s, progress.bound)
        bound_s = self._bound_s if self.best_s is None else min(self._bound_s, self.best_s)
        self.listener(replace(progress, best=self.best_s, bound=bound_s, incumbent=self.incumbent))


def steps_of(listener: OnProgress) -> OnProgress:
    """A listener of a part whose figures are not those of the whole search: it tells of its steps alone."""

    def tell(progress: Progress) -> None:
        listener(replace(progress, best=None, bound=None, incumbent=None))

    return tell
