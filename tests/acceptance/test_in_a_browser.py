"""The pages in a real browser, from the form to a re-plan: nothing on the console, nothing from elsewhere, nobody shut out.

Needs Chromium and Playwright; with MESHWRIGHT_AXE, the path of axe-core's script, every page's accessibility is judged too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from meshwright.app.base.settings import Settings
from meshwright.app.service.sandbox import ChildSolver
from meshwright.solver.control import Progress
from tests.support.fakes import FakeSolver
from tests.support.requests_given import training
from tests.support.service import running_service

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

PATIENCE_MS = 300_000
"""Time after which a page that waits for a solve hangs, on any machine."""
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 780}
WIDEST = {"width": 2560, "height": 1440}
SERIOUS = ("serious", "critical")


class Visitor:
    """A browser's tab that notes what it should never see."""

    def __init__(self, tab: Any, base: str, has_script: bool):
        self.tab, self.base, self.has_script = tab, base, has_script
        self.wrong: list[str] = []
        self.judged: set[str] = set()
        axe = os.environ.get("MESHWRIGHT_AXE")
        self.axe = Path(axe).read_text(encoding="utf-8") if axe else None
        tab.set_default_timeout(PATIENCE_MS)
        tab.on("console", lambda message: self.wrong.append(message.text) if message.type in ("error", "warning") else None)
        tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        tab.on("request", lambda request: None if request.url.startswith(base) else self.wrong.append(request.url))

    def open(self, place: str) -> None:
        answer = self.tab.goto(self.base + place)
        assert answer.status == 200, place
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        self.look()

    def look(self) -> None:
        """Judge the page that is open: that nothing of it is clipped, and its accessibility."""
        for size in (PHONE, WIDEST, WIDE):
            self.tab.set_viewport_size(size)
            over = self.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert over <= 0, f"{self.tab.url} is {over} pixels wider than {size}"
        kind = re.sub(r"[0-9a-f]{12,}", "*", self.tab.url.split("?")[0])
        if self.axe is None or kind in self.judged or not self.has_script:
            return
        self.judged.add(kind)
        self.tab.evaluate(self.axe)
        found = self.tab.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        self.wrong += [f"{self.tab.url}: {each['id']}: {each['help']}" for each in found if each["impact"] in SERIOUS]

    def click(self, words: str, *, role: str = "link") -> None:
        self.tab.get_by_role(role, name=words).first.click()

    def take(self, words: str) -> bytes:
        """The file that a link downloads."""
        with self.tab.expect_download() as coming:
            self.click(words)
        return Path(coming.value.path()).read_bytes()


@contextmanager
def visiting(client: httpx.Client, **ways: Any) -> Iterator[Visitor]:
    """A browser at a service; ``ways`` are those of Playwright, such as without scripts."""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield Visitor(browser.new_page(**ways), str(client.base_url).rstrip("/"), ways.get("java_script_enabled", True))
        finally:
            browser.close()


@pytest.mark.slow
@pytest.mark.parametrize("has_script", [True, False])
def test_from_the_form_to_a_replan(settings: Settings, has_script: bool) -> None:
    ways = {"java_script_enabled": has_script, "permissions": ["clipboard-read", "clipboard-write"]}
    with running_service(settings, ChildSolver()) as client, visiting(client, **ways) as visitor:
        go_from_the_form_to_a_replan(visitor)


def go_from_the_form_to_a_replan(visitor: Visitor) -> None:
    tab = visitor.tab
    visitor.open("/clusters")
    tab.get_by_label("Name").fill("prod")
    tab.get_by_label("Devices, in words").fill("8xH100")
    visitor.click("Register", role="button")
    visitor.look()

    visitor.open("/new")
    tab.get_by_label("Model", exact=False).first.fill("llama-3.1-8b")
    tab.get_by_label("or a registered cluster").select_option("prod")
    tab.get_by_label("Train").check()
    tab.locator("#batch").fill("64")
    tab.locator("#seq").fill("2048")
    visitor.click("Plan", role="button")
    tab.wait_for_url(re.compile(r"/plans/sha256"))
    visitor.look()
    plan = tab.url
    assert tab.get_by_text("Optimal").first.is_visible()
    assert tab.locator("svg").count() >= 2

    assert b"<svg" in visitor.take("this page as a file")
    assert json.loads(visitor.take("trace of a step"))["traceEvents"]
    assert visitor.take("its stages").startswith(b"stage")

    tab.locator('a[href*="/instead?"]').first.click()
    visitor.look()
    visitor.click("Plan this one", role="button")
    tab.wait_for_url(lambda url: "/plans/sha256" in url and url != plan and "/instead" not in url)
    visitor.look()
    other = tab.url

    visitor.open(f"/diff?old={plan.rpartition('/')[2]}&new={other.rpartition('/')[2]}")
    assert tab.get_by_text("What moves").is_visible()

    tab.goto(plan)
    visitor.click("Ask it of other clusters")
    visitor.look()
    tab.get_by_label("Clusters, parted by commas").fill("8xA100, 8xH200")
    visitor.click("Plan on these", role="button")
    # The page asks again until all are planned.
    tab.get_by_role("link", name="see it").nth(1).wait_for()
    visitor.look()
    assert [words.split("x")[-1] for words in column(tab, 1)] == ["H200", "this plan", "A100"]

    tab.goto(plan)
    visitor.click("launch")
    visitor.look()
    command = tab.get_by_label("Command", exact=True).inner_text()
    assert "pretrain_gpt.py" in command
    if visitor.has_script:
        visitor.click("Copy: Command", role="button")
        tab.get_by_text("copied", exact=True).wait_for()
        assert tab.evaluate("navigator.clipboard.readText()") == command
        visitor.look()

    visitor.open(plan.removeprefix(visitor.base) + "/run")
    tab.get_by_label("Time of a step", exact=False).fill("3.1s")
    tab.get_by_label("Peak of the fullest device", exact=False).fill("60GiB")
    visitor.click("Store the run", role="button")
    visitor.open("/runs")
    assert tab.get_by_text("3.1").first.is_visible()

    visitor.open("/clusters/prod")
    tab.get_by_label("Change it to", exact=False).fill("4 of 8 H100")
    visitor.click("Change it", role="button")
    # Changing a cluster plans again what rests on it: the page of the batch looks again until it ends.
    tab.wait_for_url(re.compile(r"/replans/"))
    tab.get_by_role("link", name="compare").wait_for()
    tab.get_by_role("button", name="Cancel it").wait_for(state="detached")
    visitor.look()
    visitor.click("compare")
    visitor.look()
    assert tab.get_by_text("What moves").is_visible()
    visitor.open("/replans")

    for place in ("/", "/calibrations", "/checks", "/docs", "/runs"):
        visitor.open(place)
    assert visitor.wrong == []


def column(tab: Any, number: int) -> Any:
    """The words that are shown in a column of the first table."""
    return tab.locator(f"tbody tr:visible > td:nth-child({number})").all_inner_texts()


@pytest.mark.slow
def test_tables_sort_and_filter(settings: Settings) -> None:
    counts = [8, 16, 24, 104, 32, 40, 48, 56, 64, 72, 80, 1024]
    with running_service(settings, FakeSolver()) as client:
        for count in counts:
            client.post("/v1/plans", json=training(cluster=f"{count}xH100")).raise_for_status()
        with visiting(client) as visitor:
            tab = visitor.tab
            visitor.open("/")
            newest = [f"{count:,}" for count in reversed(counts)]
            assert column(tab, 3) == newest
            head = tab.get_by_role("columnheader", name="devices")
            head.get_by_role("button").press("Enter")
            assert (
                column(tab, 3) == [f"{count:,}" for count in sorted(counts)] and head.get_attribute("aria-sort") == "ascending"
            )
            head.get_by_role("button").click()
            assert column(tab, 3) == [f"{count:,}" for count in sorted(counts, reverse=True)]
            assert head.get_attribute("aria-sort") == "descending"
            visitor.look()
            head.get_by_role("button").click()
            assert column(tab, 3) == newest and head.get_attribute("aria-sort") is None

            tab.get_by_label("Filter", exact=True).fill("104 llama")
            assert column(tab, 3) == ["104"]
            assert tab.get_by_text("1 of 12 rows").is_visible()
            tab.get_by_label("Filter", exact=True).fill("<b>")
            assert column(tab, 3) == [] and tab.get_by_text("0 of 12 rows").is_visible()
            assert visitor.wrong == []


UNSORTED = ["2.00 min", "900 us", "no plan", "1.50 s", "", "12 ms", "1,200 s"]


@pytest.mark.slow
def test_units_are_compared_and_words_stand_last(client: httpx.Client) -> None:
    with visiting(client) as visitor:
        visitor.open("/")
        rows = "texts.map((text) => make('tr', {}, make('td', {}, text)))"
        by = f"([texts, sign]) => sorted({rows}, 0, sign).map((row) => row.textContent)"
        rising = visitor.tab.evaluate(by, [UNSORTED, 1])
        assert rising == ["900 us", "12 ms", "1.50 s", "2.00 min", "1,200 s", "no plan", ""]
        assert visitor.tab.evaluate(by, [UNSORTED, -1])[:2] == ["1,200 s", "2.00 min"]
        # Dates and ranges are words; a number in them is compared as one.
        texts = ["2026-01-02 10:00", "0-7", "tp 2", "+3.5%", "8 x layer"]
        assert visitor.tab.evaluate("(texts) => texts.map(numberOf)", texts) == [None, None, None, 3.5, 8]


def height(point: str) -> float:
    return float(point.partition(",")[2])


@pytest.mark.slow
@pytest.mark.parametrize("has_script", [True, False])
def test_the_page_of_a_job_leads_to_the_plan(settings: Settings, has_script: bool) -> None:
    gate = threading.Event()
    solver = FakeSolver(gate=gate)
    solver.progress = Progress(10, 100, 20.0, 10.0, "searching <b>the space</b>")
    with running_service(settings, solver) as client, visiting(client, java_script_enabled=has_script) as visitor:
        tab, streams = visitor.tab, []
        tab.on("request", lambda request: streams.append(request.url) if request.url.endswith("/events") else None)
        job = client.post("/v1/plans", json=training(), headers={"prefer": "respond-async"}).json()["id"]
        visitor.open(f"/jobs/{job}")
        tab.get_by_text("searching <b>the space</b>").wait_for()
        assert tab.get_by_text("Best so far: 20").is_visible()
        pages = tab.evaluate("performance.timeOrigin")
        solver.progress = Progress(50, 100, 18.0, 15.0, "searching")
        tab.get_by_text("Gap: 16.7%").wait_for()
        assert tab.locator("progress").get_attribute("value") == "50"
        visitor.look()
        if has_script:
            assert tab.evaluate("performance.timeOrigin") == pages, "the page was asked for again"
            solver.progress = Progress(60, 100, 17.0, 16.0, "searching")
            tab.get_by_text("Gap: 5.9%").wait_for()
            drawn = [tab.locator(f"polyline.{name}").get_attribute("points").split() for name in ("best", "bound")]
            assert [drawn[0][0], drawn[1][0]] == ["0,5", "0,95"]
            assert drawn[0][-1].startswith("100,") and drawn[1][-1].startswith("100,") and len(drawn[0]) > 3
            assert height(drawn[0][-1]) > 5 and height(drawn[1][-1]) < 95, "they close in"
        gate.set()
        tab.wait_for_url(re.compile(r"/plans/sha256"))
        assert bool(streams) == has_script and visitor.wrong == []


@pytest.mark.slow
def test_a_tab_that_nobody_sees_holds_no_stream(settings: Settings) -> None:
    gate = threading.Event()
    with running_service(settings, FakeSolver(gate=gate)) as client, visiting(client) as visitor:
        tab = visitor.tab
        job = client.post("/v1/plans", json=training(), headers={"prefer": "respond-async"}).json()["id"]
        with tab.expect_request("**/events") as streamed:
            visitor.open(f"/jobs/{job}")
        turn = "(hidden) => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); "
        turn += "document.dispatchEvent(new Event('visibilitychange')); }"
        with tab.expect_event("requestfailed", lambda request: request == streamed.value):
            tab.evaluate(turn, True)
        with tab.expect_request("**/events"):
            tab.evaluate(turn, False)
        gate.set()
        tab.wait_for_url(re.compile(r"/plans/sha256"))


@pytest.mark.slow
def test_a_step_is_looked_at_closely(client: httpx.Client) -> None:
    digest = client.post("/v1/plans", json=training()).json()["digest"]
    with visiting(client) as visitor:
        tab = visitor.tab
        visitor.open(f"/plans/{digest}")
        region = tab.get_by_role("region", name="One step")
        axis = region.locator("svg.axis")
        whole = viewed(axis)

        region.press("+")
        assert viewed(axis)[2] == whole[2] / 2
        region.press("ArrowRight")
        assert viewed(axis)[0] > whole[0] + whole[2] / 4
        region.press("-")
        assert viewed(axis) == whole
        region.press("+")
        region.press("Escape")
        assert viewed(axis) == whole

        place = region.locator("svg.axis .c0").first.bounding_box()
        left, middle = place["x"] + 2, place["y"] + place["height"] / 2
        tab.mouse.move(left, middle)
        box = tab.get_by_role("tooltip")
        assert re.fullmatch(r"forward, micro-batch 0: \S+ m?s", box.inner_text())
        # The place under the pointer stays there.
        tab.keyboard.down("Control")
        tab.mouse.wheel(0, -200)
        tab.keyboard.up("Control")
        tab.wait_for_function("(width) => document.querySelector('svg.axis').viewBox.baseVal.width < width", arg=whole[2])
        assert viewed(axis)[0] < whole[0] + 2 and box.inner_text().startswith("forward, micro-batch 0")
        tab.mouse.down()
        tab.mouse.move(left - 200, middle)
        tab.mouse.up()
        assert viewed(axis)[0] > whole[0] + 20
        visitor.look()
        region.press("Escape")
        assert viewed(axis) == whole and not box.is_visible()

        region.locator("svg.axis .c0").first.focus()
        assert box.inner_text().startswith("forward, micro-batch 0")
        for key, words in (("ArrowRight", "micro-batch 1"), ("ArrowDown", "forward"), ("ArrowUp", "micro-batch"), ("End", "")):
            tab.keyboard.press(key)
            assert words in box.inner_text()
        tab.keyboard.press("Escape")
        assert not box.is_visible()

        memory = tab.get_by_role("group", name=re.compile("Look closely: Memory"))
        memory.get_by_role("button", name="Larger").click()
        assert memory.get_by_text("GiB").is_visible()
        memory.get_by_role("button", name="All", exact=True).click()
        assert not memory.get_by_text("GiB").is_visible()
        assert visitor.wrong == []


def viewed(axis: Any) -> list[float]:
    return [float(each) for each in axis.get_attribute("viewBox").split()]
