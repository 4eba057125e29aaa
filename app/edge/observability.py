"""Prometheus metrics of a process.

No label names a tenant, a model or a caller: whoever may scrape need not be one who may see plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram

from meshwright.app.base.settings import SettingError
from meshwright.app.base.version import installed_version
from meshwright.solver.answer.plan import Plan

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Tracer

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


# Spans of requests, jobs and solves, for OpenTelemetry; nothing is recorded unless a collector is configured.
#
# The package is an extra (``meshwright[otel]``) and is loaded only then. A job carries the trace of the request that began it,
# so that its spans in a worker belong to that request's trace.

SERVICE = "meshwright"
PARENT_HEADER = "traceparent"
"""W3C Trace Context, section 3.2."""

Value = str | int | float | bool


class Span(Protocol):
    """A span: the operation that is timed."""

    def set_attribute(self, key: str, value: Value) -> None:
        """Note a figure or a name."""
        ...


class _NoSpan:
    def set_attribute(self, key: str, value: Value) -> None:
        """Nobody listens."""


_NO_SPAN = _NoSpan()


class _Tracing:
    """Where the process's spans go; nowhere until it is started."""

    tracer: Tracer | None = None


_tracing = _Tracing()


def start_tracing(endpoint: str, *, service: str) -> None:
    """Send this process's spans to an OTLP collector over HTTP; without an endpoint, do nothing.

    ``service`` says which process this is: ``serve`` or ``worker``. Raises SettingError when the extra is not installed.
    """
    if not endpoint:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise SettingError(
            "MESHWRIGHT_OTLP_ENDPOINT needs a package that is not installed",
            given=endpoint,
            remedy="pip install 'meshwright[otel]'",
        ) from None
    trace_to(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)), service=service)


def trace_to(processor: SpanProcessor, *, service: str) -> None:
    """Give this process's spans to a processor."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    resource = Resource.create({"service.name": f"{SERVICE}-{service}", "service.version": installed_version()})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(processor)
    _tracing.tracer = provider.get_tracer(SERVICE, installed_version())


def stop_tracing() -> None:
    """Record nothing any more."""
    _tracing.tracer = None


@contextmanager
def span(name: str, attributes: Mapping[str, Value], *, parent: str | None = None) -> Iterator[Span]:
    """A span around what runs inside, a child of the one that runs already or of ``parent`` (a ``traceparent``)."""
    if _tracing.tracer is None:
        yield _NO_SPAN
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = None if parent is None else TraceContextTextMapPropagator().extract({PARENT_HEADER: parent})
    with _tracing.tracer.start_as_current_span(name, context=context, attributes=dict(attributes)) as started:
        yield started


def current_parent() -> str | None:
    """The ``traceparent`` of the span that runs now, for what continues it elsewhere; None where nothing is recorded."""
    if _tracing.tracer is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(PARENT_HEADER)
