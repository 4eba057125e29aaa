"""Spans of requests, jobs and solves: one trace from the caller to the solve, and nothing unless it is asked for."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from meshwright.app.base.settings import SettingError, read_settings
from meshwright.app.edge.observability import current_parent, span, start_tracing, stop_tracing, trace_to
from tests.support.requests_given import training

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    trace_to(SimpleSpanProcessor(exporter), service="test")
    yield exporter
    stop_tracing()


def named(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    return next(each for each in exporter.get_finished_spans() if each.name == name)


def test_a_request_its_job_and_its_solve_are_one_trace(spans: InMemorySpanExporter, client: httpx.Client) -> None:
    assert client.post("/v1/plans", json=training(), headers={"traceparent": CALLER}).status_code == 201
    client.get("/healthz")
    request, job, solve = (named(spans, name) for name in ("request", "job", "solve"))
    assert {format(each.context.trace_id, "032x") for each in (request, job, solve)} == {TRACE}  # type: ignore[union-attr]
    assert request.parent is not None and format(request.parent.span_id, "016x") == CALLER.split("-")[2]
    assert job.parent is not None and job.parent.span_id == request.context.span_id  # type: ignore[union-attr]
    assert solve.parent is not None and solve.parent.span_id == job.context.span_id  # type: ignore[union-attr]
    assert request.attributes is not None and job.attributes is not None and solve.attributes is not None
    assert dict(request.attributes) == {
        "http.request.method": "POST",
        "http.response.status_code": 201,
        "http.route": "/v1/plans",
    }
    assert (job.attributes["meshwright.job.status"], job.attributes["meshwright.job.attempt"]) == ("succeeded", 1)
    assert (solve.attributes["meshwright.status"], solve.attributes["meshwright.gap"]) == ("optimal", 0.0)
    assert request.resource.attributes["service.name"] == "meshwright-test"


def test_nothing_is_recorded_unless_asked_for(client: httpx.Client) -> None:
    start_tracing("", service="serve")
    with span("job", {}) as current:
        current.set_attribute("a", 1)
        assert current_parent() is None
    assert client.post("/v1/plans", json=training(), headers={"traceparent": CALLER}).status_code == 201


@pytest.mark.parametrize("wrong", ["", "nonsense", "00-0-0-01", f"00-{'0' * 32}-00f067aa0ba902b7-01", "x" * 5000])
def test_a_parent_that_is_none_begins_a_trace(spans: InMemorySpanExporter, wrong: str) -> None:
    with span("job", {}, parent=wrong):
        parent = current_parent()
    assert parent is not None and len(parent) == 55
    assert named(spans, "job").parent is None


def test_endpoints_that_are_none() -> None:
    with pytest.raises(SettingError, match="MESHWRIGHT_OTLP_ENDPOINT"):
        read_settings({"MESHWRIGHT_OTLP_ENDPOINT": "collector:4318"})
