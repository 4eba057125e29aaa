"""The pages of the service as a browser meets them: plans, the builder, the sign-in, and what they refuse."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from meshwright.app.base.errors import AuthenticationError
from meshwright.app.base.quoting import HIDDEN
from meshwright.app.base.settings import Auth, Settings
from meshwright.app.base.solving import OnBeat, ignore_beat
from meshwright.app.edge.first_visit import FirstVisit
from meshwright.app.edge.keys import KeyWish, create_key, revoke_key
from meshwright.app.store.engine import open_engine
from meshwright.app.store.principal import Scope
from meshwright.app.store.security import KeyRepository, prefix_of
from meshwright.app.web.main import create_app
from meshwright.app.web.pages.layout import SCRIPT, STYLE
from meshwright.app.web.pages.routes import COOKIE, MAX_FORM_BYTES
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import Progress
from meshwright.solver.problem.request import PlanRequest
from tests.attacks.names import PIECES
from tests.integration.web_pages import Page, safe
from tests.support.fakes import FakeSolver, infeasible_plan
from tests.support.requests_given import training
from tests.support.service import NoQueue, running_service

TRAINING = {"task": "train", "model": "llama-3.1-8b", "gpus": "8xH100", "batch": "128", "seq": "8192"}


@pytest.fixture
def guarded(settings: Settings) -> Iterator[tuple[httpx.Client, Settings]]:
    required = replace(settings, auth=Auth.REQUIRED, max_failed_auths_per_s=1000)
    with running_service(required, FakeSolver()) as client:
        yield client, required


def key_of(settings: Settings, *scopes: Scope, tenant: str = "acme") -> str:
    return create_key(KeyRepository(open_engine(settings.database_url)), KeyWish(tenant, "test", frozenset(scopes))).text


class NoPlan(FakeSolver):
    """Finds no plan."""

    def __call__(self, request: PlanRequest, on_beat: OnBeat = ignore_beat) -> Plan:
        """Answer at once."""
        return infeasible_plan(request)


def test_a_plan_is_listed_and_shown(client: httpx.Client) -> None:
    assert "There is no such plan" in safe(client.get("/"))
    digest = client.post("/v1/plans", json=training()).json()["digest"]
    assert f'href="/plans/{digest}"' in safe(client.get("/"))
    assert digest not in safe(client.get("/", params={"model": "another"}))
    shown = safe(client.get(f"/plans/{digest}"))
    assert "tokens/s" in shown and "<svg" in shown
    assert client.get(f"/plans/{digest}/document").content == client.get(f"/v1/plans/{digest}").content
    assert client.get(f"/plans/{digest}/page").headers["content-disposition"].startswith("attachment")
    assert f'href="/plans/{digest}/trace"' in shown
    trace = client.get(f"/plans/{digest}/trace")
    assert "plan.perfetto.json" in trace.headers["content-disposition"]
    assert any(event["ph"] == "X" for event in trace.json()["traceEvents"])


def test_plans_are_listed_by_their_state(client: httpx.Client) -> None:
    digest = client.post("/v1/plans", json=training()).json()["digest"]
    assert digest in safe(client.get("/", params={"model": "", "staleness": ""}))
    stale = safe(client.get("/", params={"staleness": "stale"}))
    assert digest not in stale and '<option value="stale" selected>' in stale
    safe(client.get("/", params={"staleness": '"><b>'}), 404)


@pytest.mark.slow
def test_an_answer_without_a_plan_has_no_trace(settings: Settings) -> None:
    with running_service(settings, NoPlan()) as client:
        digest = client.post("/v1/plans", json=training()).json()["digest"]
        assert "/trace" not in safe(client.get(f"/plans/{digest}"))
        assert 'role="alert"' in safe(client.get(f"/plans/{digest}/trace"), 422)


def test_the_builder_leads_to_the_plan(client: httpx.Client) -> None:
    assert 'name="gpus"' in safe(client.get("/new"))
    first = client.post("/new", data=TRAINING)
    assert first.status_code == 303 and first.headers["location"].startswith("/jobs/")
    job = first.headers["location"].removeprefix("/jobs/")
    assert job in {each["id"] for each in client.get("/v1/jobs").json()["jobs"]}
    # The same words again, once the plan is there: a wait of the API is over when it is.
    body = {"catalog": "llama-3.1-8b"}
    planned = client.post("/v1/plans", json=training(model=body, cluster="8xH100"))
    assert planned.status_code in (200, 201)
    again = client.get(f"/jobs/{job}")
    assert again.status_code == 303 and again.headers["location"].startswith("/plans/")
    assert "tokens/s" in safe(client.get(again.headers["location"]))
    assert client.post("/new", data=TRAINING).headers["location"] == again.headers["location"]


def test_a_form_that_says_too_little_comes_back_with_what_is_missing(client: httpx.Client) -> None:
    text = safe(client.post("/new", data={"task": "serve", "model": "Qwen/Qwen3-9B", "gpus": "8xH100"}), 422)
    assert "Qwen/Qwen3-8B" in text and 'value="8xH100"' in text


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("path", ["/etc/passwd", "../../etc/passwd", "./config.json", "/dev/zero"])
def test_no_file_of_the_service_can_be_named(client: httpx.Client, path: str) -> None:
    text = safe(client.post("/new", data=TRAINING | {"model": path}), 422)
    assert "the catalogue has no such model" in text


def test_hostile_words_are_shown_as_text(client: httpx.Client) -> None:
    markup = ('"><img src=x onerror=alert(1)>', "</p><h1>owned</h1>", "' autofocus onfocus='alert(1)")
    usual = Page(safe(client.get("/new"))).tags
    for piece in (*PIECES, *markup):
        name = piece.encode("utf-8", "replace").decode()
        text = safe(client.post("/new", data=TRAINING | {"model": f"x{name}", "gpus": f"8x{name}"}), 422)
        page = Page(text)
        assert page.tags - usual == Counter(p=1) and not any(each.startswith("on") for each in page.attributes)
        assert not HIDDEN.search(text.replace("\n", ""))


def test_what_is_not_there_is_said_in_a_page(client: httpx.Client) -> None:
    assert 'role="alert"' in safe(client.get(f"/plans/sha256:{0:064}"), 404)
    assert 'role="alert"' in safe(client.get("/jobs/nothing"), 404)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    "said",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://elsewhere.example"},
        {"origin": "null"},
    ],
)
def test_forms_of_other_sites_are_refused(client: httpx.Client, said: dict[str, str]) -> None:
    for path in ("/new", "/sign-in", "/sign-out"):
        safe(client.post(path, data=TRAINING, headers=said), 403)


def test_large_forms_are_refused(client: httpx.Client) -> None:
    safe(client.post("/new", data={"model": "x" * MAX_FORM_BYTES}), 413)
    safe(client.post("/new", content=b"&".join(b"a%d=1" % i for i in range(100))), 413)


def test_who_has_no_key_is_led_to_the_sign_in(guarded: tuple[httpx.Client, Settings]) -> None:
    client, _ = guarded
    for path in ("/", "/new", "/plans/sha256:00", "/jobs/nothing", "/plans/sha256:00/document"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert 'type="password"' in safe(client.get("/sign-in"))
    safe(client.post("/sign-in", data={"key": "mwk_wrong"}), 401)
    safe(client.post("/sign-in", data={}), 401)
    assert COOKIE not in client.cookies


def test_a_sign_in_keeps_the_key_where_no_script_reads_it(guarded: tuple[httpx.Client, Settings]) -> None:
    client, settings = guarded
    answer = client.post("/sign-in", data={"key": key_of(settings, Scope.PLANS_READ)})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "max-age" not in cookie and "secure" not in cookie
    behind_tls = client.post(
        "/sign-in", data={"key": key_of(settings, Scope.PLANS_READ)}, headers={"x-forwarded-proto": "https"}
    )
    assert "; secure" in behind_tls.headers["set-cookie"].lower()
    client.cookies.clear()
    client.post("/sign-in", data={"key": key_of(settings, Scope.PLANS_READ)})
    assert "Sign out" in safe(client.get("/"))
    # A key that may not plan sees no builder; the API takes no cookie.
    safe(client.get("/new"), 403)
    assert client.get("/v1/plans").status_code == 401
    client.post("/sign-out")
    client.cookies.clear()
    assert client.get("/").status_code == 303


def test_the_printed_link_signs_in_once(settings: Settings) -> None:
    required = replace(settings, auth=Auth.REQUIRED, max_failed_auths_per_s=1000)
    app = create_app(required, lambda engine: NoQueue())
    app.state.first_visit = FirstVisit(KeyRepository(app.state.engine))
    link = app.state.first_visit.link("127.0.0.1", 8000).removeprefix("http://127.0.0.1:8000")
    with running_service(required, None, app) as client:
        assert client.get(link, headers={"host": "stranger.example"}).headers["location"] == "/sign-in"
        assert "has been used" in safe(client.get(f"{link}x"), 401)
        answer = client.get(link)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie
        assert "Sign out" in safe(client.get("/")) and "Sign out" in safe(client.get("/new"))
        client.cookies.clear()
        assert "has been used" in safe(client.get(link), 401)
        assert client.get("/").status_code == 303


def test_the_printed_link_ends_by_itself_and_gives_no_rights_of_administrators(settings: Settings) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    visit = FirstVisit(KeyRepository(open_engine(settings.database_url)), now=lambda: now)
    first, second = (visit.link("::1", 8000) for _ in range(2))
    assert second.startswith("http://[::1]:8000/first-visit?token=")
    for old in (first.partition("=")[2], ""):
        with pytest.raises(AuthenticationError, match="has been used"):
            visit.key(old)
    now += timedelta(minutes=16)
    with pytest.raises(AuthenticationError, match="its time is over"):
        visit.key(second.partition("=")[2])
    now -= timedelta(minutes=2)
    made = KeyRepository(open_engine(settings.database_url)).find(prefix_of(visit.key(second.partition("=")[2])) or "")
    assert made is not None and made.scopes == frozenset(Scope) - {Scope.ADMIN}
    assert made.expires_at is not None and made.expires_at - made.created_at == timedelta(days=1)


def test_tenants_see_their_own_plans(guarded: tuple[httpx.Client, Settings]) -> None:
    client, settings = guarded
    both = (Scope.PLANS_READ, Scope.PLANS_WRITE)
    mine = {"authorization": f"Bearer {key_of(settings, *both)}"}
    other = {"authorization": f"Bearer {key_of(settings, *both, tenant='other')}"}
    digest = client.post("/v1/plans", json=training(), headers=mine).json()["digest"]
    assert digest in safe(client.get("/", headers=mine))
    assert digest not in safe(client.get("/", headers=other))
    safe(client.get(f"/plans/{digest}", headers=other), 404)


def test_the_files_of_pages_are_kept_until_they_change(client: httpx.Client) -> None:
    for file, media_type in ((STYLE, "text/css"), (SCRIPT, "text/javascript")):
        answer = client.get(file.place)
        assert answer.headers["content-type"] == f"{media_type}; charset=utf-8"
        assert answer.headers["cache-control"] == "max-age=31536000, immutable" and answer.headers["x-content-type-options"]
        # Another replica's version is answered, and kept by nobody.
        assert client.get(f"{file.place}0").headers["cache-control"] == "no-store"
        assert file.place in safe(client.get("/sign-in"))


def test_a_job_is_followed_with_the_cookie_of_its_page(guarded: tuple[httpx.Client, Settings]) -> None:
    client, settings = guarded
    both = (Scope.PLANS_READ, Scope.PLANS_WRITE)
    key = key_of(settings, *both)
    job = client.post("/new", data=TRAINING, headers={"authorization": f"Bearer {key}"}).headers["location"]
    assert client.get(f"{job}/events").headers["location"] == "/sign-in"
    client.post("/sign-in", data={"key": key_of(settings, *both, tenant="other")})
    safe(client.get(f"{job}/events"), 404)
    client.cookies.clear()
    client.post("/sign-in", data={"key": key})
    answer = client.get(f"{job}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    *_, last = re.findall(r"id: (.+)\ndata: (.+)", answer.text)
    assert json.loads(last[1]) | {"status": "succeeded", "is_final": True} == json.loads(last[1])
    assert client.get(f"{job}/events", headers={"last-event-id": last[0]}).status_code == 204


def test_a_key_that_ends_ends_the_stream_of_its_page(settings: Settings) -> None:
    gate = threading.Event()
    required = replace(settings, auth=Auth.REQUIRED)
    solver = FakeSolver(gate=gate)
    with running_service(required, solver) as client:
        key = key_of(settings, Scope.PLANS_READ, Scope.PLANS_WRITE)
        client.post("/sign-in", data={"key": key})
        job = client.post("/new", data=TRAINING).headers["location"]
        page = safe(client.get(job))
        assert f'data-events="{job}/events"' in page and '<noscript><meta http-equiv="refresh" content="2"></noscript>' in page
        with client.stream("GET", f"{job}/events") as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: job"
            revoke_key(KeyRepository(open_engine(settings.database_url)), prefix_of(key) or "", tenant="acme")
            solver.progress = Progress(1, 2, note="on")
            assert not any("succeeded" in line for line in lines)
        gate.set()
