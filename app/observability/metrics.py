"""Prometheus metrics of a process.

No label names a tenant, a model or a caller: whoever may scrape need not be one who may see plans.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from meshwright.solver.answer.plan import Plan

registry = CollectorRegistry()

REQUESTS = Counter(
    "meshwright_requests_total",
    "Requests answered, by method, route and status.",
    ("method", "route", "status"),
    registry=registry,
)
REQUEST_SECONDS = Histogram(
    "meshwright_request_seconds", "Time from a request to the end of its answer.", ("method", "route"), registry=registry
)
ANSWERS = Counter(
    "meshwright_plan_answers_total",
    "Requests for plans, by how they were answered: stored, queued, or joined a job that was there.",
    ("how",),
    registry=registry,
)
SOLVES = Counter(
    "meshwright_solves_total",
    "Solves that ended, by kind and status of the certificate.",
    ("kind", "status"),
    registry=registry,
)
SOLVE_SECONDS = Histogram(
    "meshwright_solve_seconds",
    "Processor time of a solve.",
    ("kind",),
    # Most solves end within seconds; a time limit may be an hour.
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600),
    registry=registry,
)
GAP = Histogram(
    "meshwright_plan_gap",
    "Gap of the certificate of a plan that was solved.",
    ("kind",),
    buckets=(0.0, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
    registry=registry,
)
FAILURES = Counter("meshwright_solve_failures_total", "Solves without a plan, by reason.", ("reason",), registry=registry)


def observe_solve(plan: Plan) -> None:
    """Count a solve that came to an answer."""
    SOLVES.labels(plan.kind, plan.certificate.status.value).inc()
    SOLVE_SECONDS.labels(plan.kind).observe(plan.search.seconds)
    if plan.certificate.gap is not None:
        GAP.labels(plan.kind).observe(plan.certificate.gap)


def observe_failure(error: Exception) -> None:
    """Count a solve that came to none."""
    FAILURES.labels(type(error).__name__.removesuffix("Error")).inc()
