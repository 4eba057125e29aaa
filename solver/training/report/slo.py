"""The step times that a request's targets allow, and the reason of a plan that breaks them."""

from __future__ import annotations

from meshwright.solver.answer.reason import Reason
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
