"""Pages that do something: plans beside each other, launched, replaced by others that they name, run, and planned again."""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html import unescape
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi.routing import APIRoute

from meshwright.app.base.records import to_document
from meshwright.app.base.settings import Settings
from meshwright.app.regression.lock import Policy
from meshwright.app.regression.report import CheckReport, Finding, FindingRule, PlanCheck, Severity, Verdict
from meshwright.app.web.pages.all_pages import ROUTERS
from meshwright.app.web.pages.taking import Taken
from tests.acceptance.docs_cases import page as doc
from tests.attacks.names import PIECES
from tests.attacks.planned import SERVED, TRAINED
from tests.integration.web_actions import Here
from tests.integration.web_pages import Page, check_policy, safe
from tests.support.requests_given import training
from tests.support.service import running_service

SMALL = {**TRAINED, "cluster": "8xH100", "search": {"tp": [1, 2], "pp": [1, 2], "cp": [1], "microbatch": [1]}}
REGISTERED = {"name": "prod", "words": "8xH100"}


@pytest.fixture
def solved(settings: Settings) -> Iterator[httpx.Client]:
    with running_service(settings, Here()) as client:
        yield client


def planned(client: httpx.Client, document: dict[str, object]) -> str:
    answer = client.post("/v1/plans", json=document)
    assert answer.status_code in (200, 201), answer.text
    digest: str = answer.json()["digest"]
    return digest


def led_to(client: httpx.Client, answer: httpx.Response) -> str:
    """Where a form leads in the end: over the page of its job, once that is done."""
    assert answer.status_code == 303, answer.text
    place: str = answer.headers["location"]
    while place.startswith("/jobs/"):
        found = client.get(place)
        place = found.headers.get("location", place)
    return place


def others(text: str) -> list[str]:
    """Names of the other plans that a page leads to."""
    places = [unescape(place) for place in re.findall(r'href="([^"]+/instead\?[^"]+)"', text)]
    return [parse_qs(urlsplit(place).query)["name"][0] for place in places]


@pytest.mark.slow
def test_a_plan_that_lost_is_planned_by_itself_and_compared(solved: httpx.Client) -> None:
    digest = planned(solved, SMALL)
    name = next(name for name in others(safe(solved.get(f"/plans/{digest}"))) if "tp 1," in name or "tp 2," in name)
    asked = safe(solved.get(f"/plans/{digest}/instead", params={"name": name}))
    assert "Plan this one" in asked
    place = led_to(solved, solved.post(f"/plans/{digest}/instead", data={"name": name}))
    document = solved.get(f"/v1{place}").json()
    degrees = dict(re.findall(r"\b(dp|tp|pp|cp) (\d+)", name))
    assert {axis: document["request"]["search"][axis] for axis in degrees} == {a: [int(n)] for a, n in degrees.items()}
    offered = safe(solved.get("/diff", params={"old": digest}))
    other = document["digest"]
    assert f'value="{other}"' in offered
    compared = safe(solved.get("/diff", params={"old": digest, "new": other}))
    assert "What moves" in compared and "changed" in compared
    if document["feasible"]:
        assert "GiB of weights and optimizer state move" in compared or "nothing moves" in compared
        lost = safe(solved.get("/diff", params={"old": digest, "new": other, "lost": "0"}))
        assert "What moves" in lost
    safe(solved.get("/diff", params={"old": digest, "new": other, "lost": "99999"}), 422)


@pytest.mark.slow
def test_the_question_of_a_plan_is_asked_of_other_clusters(solved: httpx.Client) -> None:
    digest = planned(solved, SMALL)
    place = f"/plans/{digest}/clusters"
    assert "Plan on these" in safe(solved.get(place)) and place in safe(solved.get(f"/plans/{digest}"))
    words = "8xA100, 8xV100-32GB, 8xH100"
    assert "not planned yet" in safe(solved.get(place, params={"clusters": words}))
    shown = led_to(solved, solved.post(place, data={"clusters": words}))
    for _ in range(240):
        table = unescape(safe(solved.get(shown)))
        if "being planned" not in table:
            break
        time.sleep(0.25)
    assert table.count("see it") == 1 and table.count("this one") == 1
    # A V100 computes nothing in bf16: the job says so.
    assert "its job failed" in table
    assert table.index("<td>8xH100") < table.index("<td>8xA100") < table.index("<td>8xV100-32GB")
    assert "this plan" in safe(solved.get(place, params={"clusters": "8xA100"}))


def test_words_that_are_no_clusters_are_refused_on_the_page(solved: httpx.Client) -> None:
    digest = planned(solved, SMALL)
    place = f"/plans/{digest}/clusters"
    assert "banana" in safe(solved.get(place, params={"clusters": "8xH100, 3 bananas"}), 422)
    assert "at most" in safe(solved.get(place, params={"clusters": ", ".join(f"{n}x8xH100" for n in range(1, 19))}), 422)
    refused = unescape(safe(solved.get(place, params={"clusters": "8xbanana"})))
    assert "banana" in refused and "see it" not in refused


def test_only_names_of_the_answer_are_planned(solved: httpx.Client) -> None:
    digest = planned(solved, SMALL)
    for name in ("tp 1", "dp 1, tp 1, pp 1, cp 1, micro-batch 1", "<b>"):
        safe(solved.get(f"/plans/{digest}/instead", params={"name": name}), 422)
        safe(solved.post(f"/plans/{digest}/instead", data={"name": name}), 422)


@pytest.mark.slow
def test_a_launch_shows_the_texts_that_the_api_gives(solved: httpx.Client) -> None:
    digest = planned(solved, SMALL)
    shown = safe(solved.get(f"/plans/{digest}/launch"))
    given = solved.get(f"/v1/plans/{digest}/launch", params={"launcher": "megatron-lm"}).json()
    assert unescape(re.findall(r'aria-label="Command">(.*?)</pre>', shown, re.DOTALL)[0]) == given["command"]
    taken = solved.get(f"/plans/{digest}/launch/file", params={"name": "launch.sh"})
    assert given["command"] in taken.text and "launch.sh" in taken.headers["content-disposition"]
    job = safe(solved.get(f"/plans/{digest}/launch", params={"launcher": "megatron-lm", "scheduler": "slurm"}))
    assert "sbatch" in job
    safe(solved.get(f"/plans/{digest}/launch", params={"launcher": "vllm"}), 422)
    safe(solved.get(f"/plans/{digest}/launch/file", params={"name": "../../etc/passwd"}), 404)


@pytest.mark.slow
def test_a_serving_plan_is_shown_under_load(solved: httpx.Client) -> None:
    digest = planned(solved, SERVED)
    shown = safe(solved.get(f"/plans/{digest}/load"))
    assert shown.count("<svg") >= 6 and "Distribution" in shown and "Requests over time" in shown
    rows = solved.get(f"/plans/{digest}/load/csv").text.splitlines()
    assert rows[0].startswith("load,ttft_p95_s") and len(rows) > 8
    trace = solved.get(f"/plans/{digest}/load/trace").json()
    work = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    end_us = max(event["ts"] for event in work) + (work[1]["ts"] - work[0]["ts"])
    assert sum(event["dur"] for event in work) / end_us == pytest.approx(trace["otherData"]["utilisation"], abs=0.02)


@pytest.mark.slow
def test_every_file_of_a_plan_can_be_taken(solved: httpx.Client) -> None:
    digest = planned(solved, SMALL)
    for kind in Taken:
        taken = solved.get(f"/plans/{digest}/{kind.value}")
        assert taken.status_code == 200 and taken.headers["content-disposition"].startswith("attachment"), kind
        if taken.headers["content-type"] == "image/svg+xml":
            ElementTree.fromstring(taken.text)
    assert solved.get(f"/plans/{digest}/stages.csv").text.splitlines()[0].startswith("stage,blocks,devices")


@pytest.mark.slow
def test_a_step_is_looked_at_closely(solved: httpx.Client) -> None:
    digest = planned(solved, SMALL | {"search": SMALL["search"] | {"pp": [2]}})
    whole = safe(solved.get(f"/plans/{digest}/step"))
    larger = unescape(next(place for place in Page(whole).places if "width=0.5" in place))
    part = safe(solved.get(larger))
    assert "The whole step" in whole and "Shown: " in part and 0 < part.count("<rect") < whole.count("<rect")
    for place in Page(part).places:
        if "/step?" in place:
            safe(solved.get(place))
    safe(solved.get(f"/plans/{digest}/step", params={"width": "nan"}), 404)


@pytest.mark.slow
def test_a_reported_run_is_shown_with_what_was_predicted(client: httpx.Client) -> None:
    digest = planned(client, training())
    assert 'name="step_time_s"' in safe(client.get(f"/plans/{digest}/run"))
    answer = client.post(f"/plans/{digest}/run", data={"step_time_s": "17.5s", "peak_memory_bytes": "41GiB", "label": "job 7"})
    assert led_to(client, answer) == f"/runs?plan={digest}"
    for place in ("/runs", f"/runs?plan={digest}", f"/plans/{digest}"):
        shown = safe(client.get(place))
        assert "17.5 s (predicted 16.0 s, -8.6%)" in shown and "job 7" in shown
    learned = safe(client.get("/calibrations"))
    reference = re.findall(r'href="/calibrations/([^"]+)"', learned)[0]
    of_runs = safe(client.get(f"/calibrations/{reference}"))
    assert "predicted against measured" in of_runs and "times what the cost model says" in of_runs
    for wrong in ({"step_time_s": "soon"}, {"tokens_per_s": "5"}, {}, {"outcome": "lost"}, {"step_time_s": "9000s"}):
        safe(client.post(f"/plans/{digest}/run", data=wrong), 422)


def test_a_changed_cluster_is_planned_again_until_the_batch_ends(client: httpx.Client) -> None:
    assert client.post("/clusters", data=REGISTERED).headers["location"] == "/clusters/prod"
    form = {"task": "train", "model": "llama-3.1-8b", "cluster": "prod", "batch": "128", "seq": "8192"}
    assert '<option value="prod">' in safe(client.get("/new"))
    first = led_to(client, client.post("/new", data=form))
    assert first.startswith("/plans/") and first.removeprefix("/plans/") in safe(client.get("/clusters/prod"))
    started = client.post("/clusters", data={"name": "prod", "words": "2x8xH100@400Gb", "replan": "yes"})
    place = started.headers["location"]
    assert place.startswith("/replans/")
    while "http-equiv" in (shown := safe(client.get(place))):
        pass
    assert "<strong>finished</strong>: 1 of 1 plan" in shown and "/diff?old=" in shown
    assert "version 2" in safe(client.get("/clusters/prod")) and "2 x" in safe(client.get("/clusters/prod"))
    assert "version 1" in safe(client.get("/clusters/prod", params={"version": 1}))
    safe(client.get("/clusters/prod", params={"version": 3}), 404)
    assert place in safe(client.get("/replans"))
    safe(client.post(f"{place}/cancel"), 409)
    # Nothing is stale any more: a batch of nothing ends at once.
    again = led_to(client, client.post("/replans", data={}))
    while "http-equiv" in (shown := safe(client.get(again))):
        pass
    assert "finished" in shown


def test_a_cluster_that_changed_meanwhile_is_not_changed_over_it(client: httpx.Client) -> None:
    client.post("/clusters", data=REGISTERED)
    text = safe(client.post("/clusters", data=REGISTERED | {"words": "16xH100", "expected": f"sha256:{0:064}"}), 422)
    assert "another version" in text
    for wrong in ({"name": "prod"}, {"name": "a/b", "words": "8xH100"}, {"name": "x", "words": "8xNothing"}):
        safe(client.post("/clusters", data=wrong), 422)
    both = {"task": "train", "model": "llama-3.1-8b", "gpus": "8xH100", "cluster": "prod", "batch": "8", "seq": "4096"}
    assert "do not go together" in safe(client.post("/new", data=both), 422)


def test_checks_and_the_course_of_a_plan_are_shown(client: httpx.Client) -> None:
    for speed in (1000.0, 1100.0):
        finding = Finding(FindingRule.THROUGHPUT, Severity.NOTE, "<b>faster</b>")
        was, now = ({"tokens_per_s": each, "memory_headroom_bytes": 2.0**33} for each in (1000.0, speed))
        plan = PlanCheck("a.plan.yaml", Verdict.BETTER, (finding,), was=was, now=now)
        report = CheckReport("plans", 0, Policy(), "", (plan,), {"better": 1}, {})
        body = {"project": "a&b", "report": to_document(CheckReport, report)}
        assert client.post("/v1/checks", json=body).status_code == 201
    listed = safe(client.get("/checks"))
    assert "a&amp;b" in listed and "passed" in listed
    one = safe(client.get(re.findall(r'href="(/checks/[0-9a-f-]{36})"', listed)[0]))
    assert "1,100 tokens/s" in one and "&lt;b&gt;faster" in one
    trend = safe(client.get("/checks/trend", params={"project": "a&b", "plan": "a.plan.yaml"}))
    assert trend.count("<svg") == 2 and "1,100" in trend
    safe(client.get("/checks/trend", params={"project": "a&b", "plan": "none"}), 404)
    safe(client.get("/checks/none"), 404)


def test_the_reference_of_the_api_has_every_endpoint_and_document(client: httpx.Client) -> None:
    text = safe_reference(client.get("/docs"))
    found = client.get("/openapi.json").json()
    for path, methods in found["paths"].items():
        for method in methods:
            assert f"<code>{method.upper()} {path}</code>" in text
    page = Page(text)
    anchors = set(re.findall(r'id="([^"]+)"', text))
    assert set(found["components"]["schemas"]) <= anchors
    assert {place.removeprefix("#") for place in page.places if place.startswith("#")} <= anchors


def safe_reference(answer: httpx.Response) -> str:
    """As ``safe``, of the page that links to places on itself."""
    assert answer.status_code == 200
    check_policy(answer)
    page = Page(answer.text)
    assert all(place.startswith(("/", "#")) for place in page.places)
    return answer.text


def test_lists_without_rows_say_what_makes_them(client: httpx.Client) -> None:
    for place in ("/runs", "/replans", "/clusters", "/calibrations", "/checks"):
        assert "<h1>" in safe(client.get(place))
    for place in ("/runs?cursor=x", "/calibrations/none", "/clusters/none", "/replans/none", "/diff?old=none"):
        assert client.get(place).status_code in (404, 422), place


@pytest.mark.parametrize(
    "place", ["/clusters", "/replans", "/plans/sha256:00/run", "/plans/sha256:00/instead", "/plans/sha256:00/clusters"]
)
def test_forms_of_other_sites_start_nothing(client: httpx.Client, place: str) -> None:
    safe(client.post(place, data=REGISTERED, headers={"sec-fetch-site": "cross-site"}), 403)


@pytest.mark.slow
def test_hostile_names_are_words_on_every_page(client: httpx.Client) -> None:
    usual = Page(safe(client.get("/clusters"))).tags
    digest = planned(client, training())
    for piece in PIECES:
        name = piece.encode("utf-8", "replace").decode()
        text = safe(client.post("/clusters", data={"name": f"x{name}", "words": f"8x{name}"}), 422)
        assert Page(text).tags["p"] - usual["p"] <= 1 and not any(each.startswith("on") for each in Page(text).attributes)
        reported = client.post(f"/plans/{digest}/run", data={"step_time_s": "17s", "label": f"x{name}"})
        if reported.status_code == 303:
            shown = Page(safe(client.get("/runs")))
            assert not shown.tags["img"] and not any(each.startswith("on") for each in shown.attributes)


def test_every_page_is_on_the_page_of_pages() -> None:
    listed = {place.split("?")[0] for place in re.findall(r"`(/[^`]*)`", doc("pages.md"))}
    places = {route.path for route in (route for module in ROUTERS for route in module.routes) if isinstance(route, APIRoute)}
    assert sorted(places - listed - {"/pages.css", "/pages.js"}) == []
