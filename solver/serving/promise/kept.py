"""Plans that a search met and that keep the promise, as they are compared with its answer."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costmodels.queueing.statistics import Percentile
from meshwright.solver.serving.promise.promised import Promised


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan that keeps the promise; plans of one name that differ in batch limits count as one.

    objective   the figure that the request's objective minimises
    splits      ways in which its workers split the model, and one for workers that are not replicas alike
    missed      chance that a target is missed, None where there is none
    """

    name: str
    objective: float
    splits: int
    ttft_s: float
    tpot_s: float
    peak_memory_bytes: float
    missed: float | None


def kept_plan(
    name: str,
    *,
    objective: float,
    splits: int,
    promised: Promised,
    ttft: Percentile,
    tpot: Percentile,
    peak_memory_bytes: float,
) -> KeptPlan:
    """Return a plan from its simulated percentiles, by the law of their errors."""
    law = promised.law
    chances = (law.ttft.chance_above(ttft.value, promised.ttft_s), law.tpot.chance_above(tpot.value, promised.tpot_s))
    ttft_s, tpot_s = law.ttft.median_s(ttft.value), law.tpot.median_s(tpot.value)
    has_target = promised.ttft_s < float("inf") or promised.tpot_s < float("inf")
    return KeptPlan(name, objective, splits, ttft_s, tpot_s, peak_memory_bytes, max(chances) if has_target else None)
