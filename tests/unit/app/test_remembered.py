"""Plans that a process has read are answered from memory, each to its own tenant, within bounds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import create_autospec

import pytest
from sqlalchemy import Engine, event

from meshwright.app.base.errors import KeyReusedError
from meshwright.app.base.settings import Settings
from meshwright.app.requests import digests as digest
from meshwright.app.service.engine import JobQueue
from meshwright.app.service.planning import Call, PlanService, Submission, Wanted
from meshwright.app.store.engine import open_engine, writing
from meshwright.app.store.fleet import RegisteredKind, RegisteredRepository, registered_cluster
from meshwright.app.store.migrate import upgrade
from meshwright.app.store.plans import PlanRepository, RememberedTexts
from meshwright.app.store.principal import Principal, Scope
from tests.integration.db import numbered
from tests.support.requests_given import training

pytestmark = pytest.mark.both_databases


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    engine = open_engine(settings.database_url)
    upgrade(engine)
    yield engine
    engine.dispose()


def call_of(tenant: str, *, key: str | None = None) -> Call:
    return Call(Principal(tenant, "local", frozenset(Scope)), training(), 3, key)


def test_texts_that_were_not_asked_for_longest_go_first() -> None:
    texts = RememberedTexts(most_bytes=2 * sys.getsizeof("12345"))
    texts.keep("t", "a", "12345")
    texts.keep("t", "b", "12345")
    assert texts.find("t", "a") == "12345"
    texts.keep("t", "c", "123")
    assert [texts.find("t", name) for name in "abc"] == ["12345", None, "123"]
    texts.keep("t", "d", "longer than all" * 10)
    assert [texts.find("t", name) for name in "abcd"] == [None] * 4


def test_what_counts_is_the_memory_that_texts_take() -> None:
    texts = RememberedTexts(most_bytes=1000)
    for name, text in (("plain", "m" * 400), ("wide", "\N{GLOBE WITH MERIDIANS}" * 200)):
        texts.keep("t", name, text)
    assert (texts.find("t", "plain"), texts.find("t", "wide")) == (None, "\N{GLOBE WITH MERIDIANS}" * 200)


def test_who_reads_many_plans_pushes_out_its_own() -> None:
    texts = RememberedTexts(most_bytes=20_000)
    texts.keep("modest", "one", "x" * 1000)
    for number in range(100):
        texts.keep("greedy", str(number), "x" * 1000)
    kept = [name for name in map(str, range(100)) if texts.find("greedy", name) is not None]
    assert texts.find("modest", "one") is not None
    assert kept and kept == [str(number) for number in range(100 - len(kept), 100)]


def test_a_tenant_finds_its_own_alone() -> None:
    texts = RememberedTexts()
    texts.keep("mine", "a", "text")
    assert texts.find("yours", "a") is None


def test_what_was_read_once_needs_no_database(engine: Engine, settings: Settings) -> None:
    service = PlanService(engine, create_autospec(JobQueue), settings)
    call = call_of("mine")
    resolved = service.resolve_alone(call)
    assert resolved is not None
    assert service.remembered(call, resolved) is None
    PlanRepository(engine, "mine").add(replace(numbered(1), digest=resolved.key.digest))
    read = service.look_up(call, resolved)
    assert isinstance(read, Submission)
    assert read == service.look_up(call)

    statements: list[object] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments))
    assert service.remembered(call, service.resolve_alone(call)) == read
    assert service.remembered(call_of("yours"), resolved) is None
    assert service.remembered(call_of("mine", key="again"), resolved) is None
    assert statements == []


def test_a_body_that_was_resolved_once_is_not_parsed_again(engine: Engine, settings: Settings) -> None:
    service = PlanService(engine, create_autospec(JobQueue), settings)
    resolved = service.resolve_alone(call_of("mine"))
    service.note_asked("mine", "body", resolved)
    assert service.asked_before("mine", "body") is None, "its plan is not there yet"
    text = _remembered(service, engine)
    found = service.asked_before("mine", "body")
    assert resolved is not None and found is not None
    assert (found.digest, found.text) == (resolved.key.digest, text)
    assert service.asked_before("yours", "body") is None
    assert service.asked_before("mine", "another body") is None
    assert service.asked_before("mine", None) is None


def test_a_body_that_names_the_fleet_is_resolved_each_time(engine: Engine, settings: Settings) -> None:
    service = PlanService(engine, create_autospec(JobQueue), settings)
    _remembered(service, engine)
    service.note_asked("mine", "body", service.resolve_alone(replace(call_of("mine"), document=training(model={"name": "m"}))))
    assert service.asked_before("mine", "body") is None


def test_what_names_the_fleet_is_looked_up(engine: Engine, settings: Settings) -> None:
    service = PlanService(engine, create_autospec(JobQueue), settings)
    for named in ({"model": {"name": "m"}}, {"cluster": {"name": "c"}}, {"calibrations": ["a100"]}):
        assert service.resolve_alone(replace(call_of("mine"), document=training(**named))) is None


def test_a_key_is_noted_although_the_plan_is_remembered(engine: Engine, settings: Settings) -> None:
    service = PlanService(engine, create_autospec(JobQueue), settings)
    text = _remembered(service, engine)
    wanted = service.look_up(call_of("mine", key="once"))
    assert isinstance(wanted, Wanted) and wanted.text == text
    with writing(engine) as connection:
        service.begin(wanted, connection)
    again = service.look_up(call_of("mine", key="once"))
    assert isinstance(again, Submission) and again.text == text
    other = replace(call_of("mine", key="once"), document=training(search={"seed": 1}))
    with pytest.raises(KeyReusedError):
        service.look_up(other)


def test_a_newer_version_of_the_solver_finds_nothing_of_an_older_one(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = PlanService(engine, create_autospec(JobQueue), settings)
    _remembered(service, engine)
    call = call_of("mine")
    assert service.remembered(call, service.resolve_alone(call)) is not None
    monkeypatch.setattr(digest, "SOLVER_VERSION", "of tomorrow")
    assert service.remembered(call, service.resolve_alone(call)) is None
    found = service.look_up(call)
    assert isinstance(found, Wanted) and found.text is None


def test_a_cluster_that_changed_has_another_plan(engine: Engine, settings: Settings) -> None:
    service = PlanService(engine, create_autospec(JobQueue), settings)
    call = replace(call_of("mine"), document=training(cluster={"name": "c"}))
    known = []
    for nodes in (1, 2, 2):
        document = registered_cluster({"catalog": "dgx-h100", "nodes": nodes})
        with writing(engine) as connection:
            clusters = RegisteredRepository(engine, "mine", RegisteredKind.CLUSTER)
            clusters.put(connection, "c", digest=f"of {nodes}", document=document, expected=None)
        found = service.look_up(call)
        assert isinstance(found, Wanted)
        known.append(found.text is not None)
        if found.text is None:
            PlanRepository(engine, "mine").add(replace(numbered(nodes), digest=found.key.digest))
            service.look_up(call)
    assert known == [False, False, True]


def _remembered(service: PlanService, engine: Engine) -> str:
    """Store a plan for the tenant "mine" and let the service read it; its text."""
    resolved = service.resolve_alone(call_of("mine"))
    assert resolved is not None
    PlanRepository(engine, "mine").add(replace(numbered(1), digest=resolved.key.digest))
    read = service.look_up(call_of("mine"))
    assert isinstance(read, Submission) and read.text is not None
    return read.text
