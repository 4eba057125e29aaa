"""Checks against a running service: its plans, its history, and what goes wrong between the two."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from meshwright.app.base.errors import ServiceError
from meshwright.app.base.settings import Auth, Settings
from meshwright.app.regression.server import ServerPlanner
from meshwright.app.service.sandbox import ChildSolver
from meshwright.app.store.principal import Scope
from meshwright.costmodels.errors import InvalidInputError
from tests.integration.regression.project import LOCK, NAME, REQUEST, Project
from tests.integration.security.service import header
from tests.support.command_line import Cli, Json
from tests.support.fakes import FakeSolver, feasible_plan
from tests.support.requests_given import resolved
from tests.support.service import running_service


@pytest.fixture
def project(cli: Cli, plan_store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Project:
    """A folder whose lock holds its plan."""
    monkeypatch.setenv("MESHWRIGHT_DATABASE_URL", plan_store)
    (tmp_path / ".git").mkdir()
    made = Project(cli)
    made.update()
    return made


@pytest.fixture(scope="session")
def plan_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/plans.db"


@pytest.fixture
def service(settings: Settings) -> Iterator[httpx.Client]:
    """A service that solves for real, with a database of its own, and asks for keys."""
    with running_service(replace(settings, auth=Auth.REQUIRED), ChildSolver()) as client:
        yield client


@pytest.fixture
def asked(service: httpx.Client, settings: Settings, project: Project, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Options that make a check ask the service, whose database this machine does not use."""
    shown = header(settings, Scope.PLANS_READ, Scope.PLANS_WRITE)["authorization"].removeprefix("Bearer ")
    monkeypatch.setenv("MESHWRIGHT_API_KEY", shown)
    return ("--server", str(service.base_url), "--project", "search")


def test_a_service_gives_the_lock_that_this_machine_gives(
    cli: Cli, project: Project, asked: tuple[str, ...], service: httpx.Client, settings: Settings
) -> None:
    before = project.lock_text()
    (project.folder / LOCK).unlink()
    assert cli("check", str(project.folder), "--update", *asked) == 0, cli.err
    assert project.lock_text() == before
    reader = header(settings, Scope.PLANS_READ)
    listed = service.get("/v1/checks", headers=reader).json()["checks"]
    assert [(check["project"], check["counts"]) for check in listed] == [("search", {"new": 1})]


def test_history_shows_how_a_plan_went(
    cli: Cli, project: Project, asked: tuple[str, ...], service: httpx.Client, settings: Settings
) -> None:
    reader = header(settings, Scope.PLANS_READ)
    assert cli("check", str(project.folder), *asked) == 0, cli.err

    def half(request: Json) -> None:
        request["cluster"]["groups"][0]["nodes"] = 1

    project.edit(half)
    assert cli("check", str(project.folder), "--json", *asked) == 1
    report = cli.json()
    first = service.get("/v1/checks", headers=reader, params={"limit": 1, "project": "search"}).json()
    assert [check["passed"] for check in first["checks"]] == [False]
    assert service.get(f"/v1/checks/{first['checks'][0]['id']}", headers=reader).json() == report
    second = service.get("/v1/checks", headers=reader, params={"cursor": first["next_cursor"]}).json()
    assert [check["passed"] for check in second["checks"]] == [True]
    assert second["next_cursor"] is None
    points = service.get("/v1/checks/trend", headers=reader, params={"project": "search", "plan": NAME}).json()["points"]
    assert [point["verdict"] for point in points] == ["worse", "same"]
    assert points[0]["figures"]["tokens_per_s"] < points[1]["figures"]["tokens_per_s"]
    assert points[0]["findings"]
    nothing = service.get("/v1/checks/trend", headers=reader, params={"project": "other", "plan": NAME}).json()
    assert nothing["points"] == []


def test_checks_of_another_tenant_are_not_there(
    cli: Cli, project: Project, asked: tuple[str, ...], service: httpx.Client, settings: Settings
) -> None:
    assert cli("check", str(project.folder), *asked) == 0
    ours, theirs = header(settings, Scope.PLANS_READ), header(settings, Scope.PLANS_READ, tenant="rival")
    check = service.get("/v1/checks", headers=ours).json()["checks"][0]["id"]
    assert service.get("/v1/checks", headers=theirs).json()["checks"] == []
    assert service.get(f"/v1/checks/{check}", headers=theirs).status_code == 404
    assert service.get(f"/v1/checks/{check}", headers=ours).status_code == 200
    trend = service.get("/v1/checks/trend", headers=theirs, params={"project": "search", "plan": NAME}).json()
    assert trend["points"] == []


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    "body", [{}, {"project": "a"}, {"project": "", "report": {}}, {"project": "a", "report": {"plans": 1}}]
)
def test_what_is_no_report_is_refused(service: httpx.Client, settings: Settings, body: Json) -> None:
    writer = header(settings, Scope.PLANS_WRITE)
    assert service.post("/v1/checks", headers=writer, json=body).status_code == 422


def test_without_a_key_the_check_says_so(cli: Cli, project: Project, service: httpx.Client) -> None:
    assert cli("check", str(project.folder), "--server", str(service.base_url)) == 2
    assert "401" in cli.out + cli.err
    assert "meshwright keys create" in cli.out + cli.err


@pytest.mark.parametrize("url", ["nowhere", "ftp://host", "http://", "http://host:port"])
def test_an_address_that_is_none(cli: Cli, project: Project, url: str) -> None:
    assert cli("check", str(project.folder), "--server", url) == 2
    assert url in cli.out + cli.err or "http://HOST" in cli.out + cli.err


def test_a_service_that_is_not_there(cli: Cli, project: Project) -> None:
    assert cli("check", str(project.folder), "--server", "http://127.0.0.1:1") == 3
    assert "does not answer" in cli.err
    assert "report it" not in cli.err


def test_a_project_needs_a_service(cli: Cli, project: Project) -> None:
    assert cli("check", str(project.folder), "--project", "search") == 2


class Answers:
    """A service that gives answers in order, and keeps what it was asked."""

    def __init__(self, *answers: httpx.Response):
        self.answers, self.asked = list(answers), list[str]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.path}")
        return self.answers.pop(0)


def planned_by(monkeypatch: pytest.MonkeyPatch, *answers: httpx.Response) -> tuple[object, Answers]:
    """Return the answer of a planner to one request, and the service's answers."""
    from meshwright.app.requests.digests import keyed_request

    given, waits = Answers(*answers), list[float]()
    transport = httpx.MockTransport(given)
    original = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **options: original(transport=transport, **options))
    key = keyed_request(resolved())
    (plan,) = ServerPlanner("http://service", "", sleep=waits.append).plan_all([key]).values()
    return plan, given


def plan_answer() -> httpx.Response:
    from meshwright.app.requests.digests import keyed_request, plan_text

    key = keyed_request(resolved())
    return httpx.Response(200, text=plan_text(feasible_plan(key.request), key))


def accepted() -> httpx.Response:
    return httpx.Response(202, json={"status": "queued"}, headers={"location": "/v1/jobs/7", "retry-after": "1"})


def job(status: str, **more: object) -> httpx.Response:
    return httpx.Response(200, json={"status": status, **more})


def test_a_job_is_followed_to_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = (accepted(), job("queued"), job("running"), job("succeeded", plan="/v1/plans/x"), plan_answer())
    plan, service = planned_by(monkeypatch, *answers)
    assert plan == json_plan()
    assert service.asked == ["POST /v1/plans", *["GET /v1/jobs/7"] * 3, "GET /v1/plans/x"]


def json_plan() -> object:
    from meshwright.app.requests.plan_documents import read_plan

    return read_plan(json.loads(plan_answer().text))


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ((accepted(), job("failed", problem={"detail": "out of memory"})), "out of memory"),
        ((accepted(), job("cancelled")), "cancelled"),
        ((httpx.Response(500, json={"detail": "a defect"}),), "500"),
        ((httpx.Response(200, text="<html>"),), "no JSON object"),
        ((httpx.Response(200, json=[1]),), "no JSON object"),
    ],
)
def test_a_service_that_fails_is_an_error(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[httpx.Response, ...], said: str
) -> None:
    with pytest.raises(ServiceError, match=said):
        planned_by(monkeypatch, *answers)


def test_a_plan_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = plan_answer()
    document = json.loads(answer.text)
    document["digest"] = "sha256:" + "0" * 64
    found, _ = planned_by(monkeypatch, httpx.Response(200, json=document))
    assert isinstance(found, InvalidInputError)
    assert "another version" in str(found)


def test_a_plan_that_time_decided_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(plan_answer().text)
    document["certificate"] |= {"status": "feasible"}
    found, _ = planned_by(monkeypatch, httpx.Response(200, json=document))
    assert isinstance(found, InvalidInputError)
    assert "time limit" in str(found)


@pytest.mark.slow
def test_a_report_that_is_not_kept_is_a_warning(
    cli: Cli, project: Project, asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise ServiceError("the service answers 503")

    monkeypatch.setattr(ServerPlanner, "keep_report", refuse)
    assert cli("check", str(project.folder), *asked) == 0
    assert "did not keep the report" in cli.err


def test_a_fake_solver_is_asked_once(settings: Settings, project: Project, tmp_path: Path) -> None:
    """Equal requests of a check are one request to the service."""
    project.write(REQUEST, "copy.plan.yaml")
    solver = FakeSolver()
    with running_service(settings, solver) as client:
        code = project.cli("check", str(project.folder), "--update", "--server", str(client.base_url))
    assert code == 0, project.cli.err
    assert solver.calls == 1
