"""The time until a page of the service is seen: ``python -m benchmarks.page_views [--plans N] [--views N]``.

Stores N plans, among them that of Llama-3.1-405B on 16,384 devices and one serving plan, then opens the list, the pages of
these two and the form in Chromium, each in a fresh browser context. For each: the time to the first contentful paint and to
the end of loading, the bytes that were sent and what they unpack to. Then the timeline of the largest plan is zoomed with the
wheel, and a trace of Chromium says how many frames a second it draws. The list is also asked for over REST, all N plans. Needs
Chromium and Playwright.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from playwright.sync_api import Browser, sync_playwright

from benchmarks.service_process import running_process

EXAMPLES = Path(__file__).parent.parent / "examples"
LARGEST = EXAMPLES / "llama-3.1-405b-16384xh100.yaml"
SERVED = EXAMPLES / "llama-3.1-70b-serving-h100.yaml"
PAGE_OF_REST = 200
PAINT_EVERY_S = 0.02
ZOOM_S = 3.0
"""Seconds for which the wheel is turned to and fro."""
WHEEL_TURNS = 20
"""Turns in one direction, each of ``WHEEL_STEP`` pixels: far enough to see one micro-batch."""
WHEEL_STEP = 60
TURN_THE_WHEEL = """(svg, [seconds, turns, step]) => new Promise((done) => {
  const { left, width, top } = svg.getBoundingClientRect();
  const began = performance.now();
  const turn = (number) => {
    const took = (performance.now() - began) / 1000;
    if (took > seconds) return done(took);
    const deltaY = Math.floor(number / turns) % 2 ? step : -step;
    const place = { clientX: left + width / 2, clientY: top, ctrlKey: true, cancelable: true };
    svg.dispatchEvent(new WheelEvent('wheel', { deltaY, ...place }));
    requestAnimationFrame(() => turn(number + 1));
  };
  turn(0);
})"""
"""One turn of the wheel before each frame; gives the seconds that all took."""
TIMES = """() => {
  const seen = performance.getEntriesByName('first-contentful-paint')[0];
  if (!seen) return null;
  const way = performance.getEntriesByType('navigation')[0];
  const all = [way, ...performance.getEntriesByType('resource')];
  const sum = (of) => all.reduce((total, each) => total + each[of], 0);
  return [seen.startTime, way.loadEventEnd, sum('transferSize'), sum('decodedBodySize')];
}"""


@dataclass(frozen=True)
class View:
    """One view of a page: times in seconds, sizes in bytes."""

    painted_s: float
    loaded_s: float
    sent_bytes: float
    unpacked_bytes: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=1000, help="plans that are stored")
    parser.add_argument("--views", type=int, default=7, help="views of each page; the median is told, and the longest")
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with (
        tempfile.TemporaryDirectory() as folder,
        running_process(Path(folder)) as service,
        sync_playwright() as started,
        httpx.Client(base_url=service.url, timeout=600) as client,
    ):
        digests = [post(client, each) for each in requests(given.plans)]
        print(f"{len(digests)} plans are stored (load {os.getloadavg()[0]:.1f})")
        pages = {
            "the list": "/",
            "the largest plan": f"/plans/{digests[0]}",
            "a serving plan": f"/plans/{digests[1]}",
            "the form": "/new",
        }
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        print("| page | first paint (longest) | loaded (longest) | sent | unpacked |\n|---|---|---|---|---|")
        for name, place in pages.items():
            print(row(name, [view(browser, service.url + place) for _ in range(given.views)]), flush=True)
        timeline = service.url + pages["the largest plan"]
        print(f"its timeline is zoomed at {zoomed_frames_per_s(browser, timeline):.0f} frames a second")
        took = [listing(client, given.plans) for _ in range(given.views)]
        print(f"REST lists all {given.plans} plans in {1e3 * statistics.median(took):.0f} ms ({1e3 * max(took):.0f})")
        first = [timed(client, f"/v1/plans?limit={PAGE_OF_REST}")[0] for _ in range(given.views)]
        print(f"its first page of {PAGE_OF_REST} takes {1e3 * statistics.median(first):.0f} ms ({1e3 * max(first):.0f})")
    return 0


def requests(plans: int) -> Iterator[dict[str, Any]]:
    """The largest example, a serving plan, and as many small training plans as are missing."""
    yield yaml.safe_load(LARGEST.read_text(encoding="utf-8"))
    small: dict[str, Any] = {"schema": "meshwright.request/1", "model": {"catalog": "llama-3.1-8b"}, "cluster": "8xH100"}
    yield yaml.safe_load(SERVED.read_text(encoding="utf-8"))
    for number in range(plans - 2):
        request = copy.deepcopy(small)
        request["workload"] = {"kind": "training", "global_batch": 64, "seq_len": 1024 + 8 * number}
        request["search"] = {"tp": [1], "pp": [1], "microbatch": [1]}
        yield request


def post(client: httpx.Client, request: dict[str, Any]) -> str:
    answer = client.post("/v1/plans", json=request)
    if answer.status_code == 202:
        place = answer.json()["href"] if "href" in answer.json() else answer.headers["location"]
        while (answer := client.get(place, follow_redirects=True)).json().get("status") in ("queued", "running"):
            time.sleep(0.2)
    answer.raise_for_status()
    digest: str = answer.json()["digest"]
    return digest


def view(browser: Browser, url: str) -> View:
    context = browser.new_context()
    try:
        tab = context.new_page()
        tab.goto(url, wait_until="load")
        while (times := tab.evaluate(TIMES)) is None:
            time.sleep(PAINT_EVERY_S)
    finally:
        context.close()
    painted_ms, loaded_ms, sent_bytes, unpacked_bytes = times
    return View(painted_ms / 1e3, loaded_ms / 1e3, sent_bytes, unpacked_bytes)


def zoomed_frames_per_s(browser: Browser, url: str) -> float:
    """Frames that Chromium draws a second while the wheel with Ctrl zooms the timeline of a plan's page, by its own trace."""
    context = browser.new_context()
    try:
        tab = context.new_page()
        tab.goto(url, wait_until="load")
        drawing = tab.locator("svg:has(svg.axis)").first
        drawing.scroll_into_view_if_needed()
        browser.start_tracing(page=tab, categories=["devtools.timeline", "disabled-by-default-devtools.timeline.frame"])
        turning_s = drawing.evaluate(TURN_THE_WHEEL, [ZOOM_S, WHEEL_TURNS, WHEEL_STEP])
        events = json.loads(browser.stop_tracing())["traceEvents"]
    finally:
        context.close()
    return sum(event["name"] == "DrawFrame" for event in events) / turning_s


def row(name: str, views: list[View]) -> str:
    painted, loaded = ([getattr(each, of) for each in views] for of in ("painted_s", "loaded_s"))
    times = [f"{statistics.median(each):.2f} s ({max(each):.2f})" for each in (painted, loaded)]
    return f"| {name} | {' | '.join(times)} | {views[0].sent_bytes / 1e6:.2f} MB | {views[0].unpacked_bytes / 1e6:.2f} MB |"


def timed(client: httpx.Client, place: str) -> tuple[float, dict[str, Any]]:
    began_s = time.perf_counter()
    document: dict[str, Any] = client.get(place).raise_for_status().json()
    return time.perf_counter() - began_s, document


def listing(client: httpx.Client, plans: int) -> float:
    """Return the seconds that all pages of the list take, one after another."""
    total_s, seen, place = 0.0, 0, f"/v1/plans?limit={PAGE_OF_REST}"
    while place:
        took_s, document = timed(client, place)
        total_s, seen = total_s + took_s, seen + len(document["plans"])
        cursor = document.get("next_cursor")
        place = f"/v1/plans?limit={PAGE_OF_REST}&cursor={cursor}" if cursor else ""
    assert seen == plans, (seen, plans)
    return total_s


if __name__ == "__main__":
    raise SystemExit(main())
