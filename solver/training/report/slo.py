"""The step times that a request's targets allow, and the reason of a plan that breaks them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.solver.answer.predicted import Reason
from meshwright.solver.control import Incumbent, OnProgress, Progress
from meshwright.solver.problem.request import TrainingRequest


def slo_limit_s(request: TrainingRequest) -> float:
    """Longest step that the SLO allows."""
    return request.longest_step_s


def slo_reason(request: TrainingRequest, step_time_s: float, *, factor: float = 1.0) -> Reason | None:
    """Reason why the best step time breaks the SLO; None when it keeps it. A measured step takes ``factor`` times the predicted
    one at most, with the SLO's confidence; 1 where targets are in the cost model's time."""
    workload, slo = request.workload, request.slo
    limits = []
    if slo.max_step_time_s is not None:
        limits.append(("slo.max_step_time_s", slo.max_step_time_s))
    if slo.min_tokens_per_s is not None:
        limits.append(("slo.min_tokens_per_s", workload.global_batch * workload.seq_len / slo.min_tokens_per_s))
    promised_s = step_time_s * factor
    broken = [(name, limit_s) for name, limit_s in limits if promised_s > limit_s]
    if not broken:
        return None
    name, limit_s = min(broken, key=lambda item: item[1])
    tokens = workload.global_batch * workload.seq_len
    upper = "" if factor == 1.0 else f", up to {promised_s:.4g} s with slo.confidence {slo.confidence:g}"
    return Reason(
        constraint=name,
        need=promised_s,
        have=limit_s,
        unit="s",
        message=(
            f"{name}: the fastest step that fits takes {step_time_s:.4g} s ({tokens / step_time_s:,.0f} tokens/s){upper}, the "
            f"SLO allows {limit_s:.4g} s ({tokens / limit_s:,.0f} tokens/s): {promised_s / limit_s:.3f} times too slow"
        ),
        remedies=(
            "add devices, or faster ones",
            "relax the SLO",
            *(() if factor == 1.0 else ("ask for less slo.confidence, or report measured runs",)),
            "lift restrictions in 'search'",
        ),
    )


# The progress of a search in several parts, which never tells a worse plan or bound than before.


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
