"""The step times that a request's targets allow, and the reason of a plan that breaks them."""

from __future__ import annotations

import math

from meshwright.solver.answer.reason import Reason
from meshwright.solver.problem.request import TrainingRequest


def slo_limit_s(request: TrainingRequest) -> float:
    """Longest step that the SLO allows."""
    workload, slo = request.workload, request.slo
    limits = [math.inf if slo.max_step_time_s is None else slo.max_step_time_s]
    if slo.min_tokens_per_s is not None:
        limits.append(workload.global_batch * workload.seq_len / slo.min_tokens_per_s)
    return min(limits)


def slo_reason(request: TrainingRequest, step_time_s: float) -> Reason | None:
    """Reason why the best step time breaks the SLO; None when it keeps it."""
    workload, slo = request.workload, request.slo
    limits = []
    if slo.max_step_time_s is not None:
        limits.append(("slo.max_step_time_s", slo.max_step_time_s))
    if slo.min_tokens_per_s is not None:
        limits.append(("slo.min_tokens_per_s", workload.global_batch * workload.seq_len / slo.min_tokens_per_s))
    broken = [(name, limit_s) for name, limit_s in limits if step_time_s > limit_s]
    if not broken:
        return None
    name, limit_s = min(broken, key=lambda item: item[1])
    tokens = workload.global_batch * workload.seq_len
    return Reason(
        constraint=name,
        need=step_time_s,
        have=limit_s,
        unit="s",
        message=(
            f"{name}: the fastest step that fits takes {step_time_s:.4g} s ({tokens / step_time_s:,.0f} tokens/s), the "
            f"SLO allows {limit_s:.4g} s ({tokens / limit_s:,.0f} tokens/s): {step_time_s / limit_s:.3f} times too slow"
        ),
        remedies=("add devices, or faster ones", "relax the SLO", "lift restrictions in 'search'"),
    )
