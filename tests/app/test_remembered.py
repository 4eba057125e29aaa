"""Plans that a process has read are answered from memory, each to its own tenant, within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import create_autospec

import pytest
from sqlalchemy import Engine, event

from app.db.engine import open_engine
from app.db.migrate import upgrade
from app.db.plan_repository import PlanRepository
from app.jobs.queue import JobQueue
from app.plans.remembered import RememberedTexts
from app.plans.service import Call, PlanService, Submission
from app.security.principal import Principal, Scope
from app.settings import Settings
from tests.app.requests_given import training
from tests.app.test_db import numbered

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
    texts = RememberedTexts(most_characters=10)
    texts.keep("t", "a", "12345")
    texts.keep("t", "b", "12345")
    assert texts.find("t", "a") == "12345"
    texts.keep("t", "c", "123")
    assert [texts.find("t", name) for name in "abc"] == ["12345", None, "123"]
    texts.keep("t", "d", "much longer than all")
    assert [texts.find("t", name) for name in "abcd"] == [None] * 4


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


def test_what_names_the_fleet_is_looked_up(engine: Engine, settings: Settings) -> None:
    service = PlanService(engine, create_autospec(JobQueue), settings)
    for named in ({"model": {"name": "m"}}, {"cluster": {"name": "c"}}, {"calibrations": ["a100"]}):
        assert service.resolve_alone(replace(call_of("mine"), document=training(**named))) is None
