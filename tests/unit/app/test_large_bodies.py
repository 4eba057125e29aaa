"""Large bodies are read as short ones are, in a process of their own."""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from meshwright.app.base.errors import DocumentError, MalformedError, StoreError
from meshwright.app.base.settings import Settings
from meshwright.app.requests.digests import keyed_request
from meshwright.app.service.large_bodies import LargeBody, ReadBody, read_large_body
from meshwright.app.service.planning import fingerprint_of, resolved_in_fleet
from meshwright.app.store.engine import open_engine, writing
from meshwright.app.store.fleet import RegisteredKind, RegisteredRepository, registered_cluster
from meshwright.app.store.migrate import upgrade
from tests.support.requests_given import resolved, training

LIMIT_S = 600


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    """The garbage collector as it was: what is tested here switches it off for the rest of its process."""
    was_on = gc.isenabled()
    yield
    if was_on:
        gc.enable()


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    engine = open_engine(settings.database_url)
    upgrade(engine)
    yield engine
    engine.dispose()


def read(text: bytes, database_url: str = "sqlite:////nowhere/at/all.db") -> ReadBody:
    """Return the body as it is read over there and comes back."""
    given = pickle.loads(pickle.dumps(LargeBody(text, "mine", database_url, LIMIT_S)))
    found: ReadBody = pickle.loads(pickle.dumps(read_large_body(given)))
    return found


def test_a_body_that_says_everything_itself_has_its_digest_and_text() -> None:
    found = read(json.dumps(training()).encode() + b" " * 1000)
    key = keyed_request(resolved(training()))
    assert found.resolved.asked is None
    assert (found.resolved.key.digest, found.resolved.key.text) == (key.digest, key.text)
    assert found.resolved.key.model == key.request.model.name
    assert found.fingerprint == fingerprint_of(training())


@pytest.mark.both_databases
def test_a_body_that_names_the_fleet_is_resolved_with_its_tenants(engine: Engine, settings: Settings) -> None:
    document = training(cluster={"name": "c"})
    with writing(engine) as connection:
        clusters = RegisteredRepository(engine, "mine", RegisteredKind.CLUSTER)
        cluster = registered_cluster({"catalog": "dgx-h100", "nodes": 2})
        clusters.put(connection, "c", digest="of two", document=cluster, expected=None)
    found = read(json.dumps(document).encode(), settings.database_url).resolved
    known = resolved_in_fleet(document, engine, "mine", LIMIT_S)
    assert found.asked == known.asked and found.asked is not None
    assert (found.key.digest, found.key.text, found.key.model) == (known.key.digest, known.key.text, known.key.model)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"[1, 2]", MalformedError),
        (b'{"a": 1', MalformedError),
        (b'{"a":' * 1000 + b"1" + b"}" * 1000, MalformedError),
        (json.dumps(training(search={"time_limit_s": LIMIT_S + 1})).encode(), DocumentError),
        (json.dumps(training(workload={"kind": "training"})).encode(), DocumentError),
        (json.dumps(training(cluster={"name": "c"})).encode(), StoreError),
    ],
    ids=["list", "cut", "deep", "slow", "faulty", "no database"],
)
def test_errors_come_back_whole(body: bytes, kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_folder(*given: Any, **options: Any) -> None:
        raise OSError("read only")

    monkeypatch.setattr("pathlib.Path.mkdir", no_folder)
    with pytest.raises(kind) as raised:
        read(body)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), str(again), vars(again)) == (type(raised.value), str(raised.value), vars(raised.value))


def test_what_is_sent_shows_no_password() -> None:
    assert "secret" not in repr(LargeBody(b"{}", "mine", "postgresql://u:secret@host/db", LIMIT_S))
